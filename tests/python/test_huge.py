"""Messages of more than 2 GiB: lengths and offsets beyond 31 bits."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

BYTES = (2 << 30) + (200 << 20) + 3
MARKS = [0, (1 << 30) - 1, (2 << 30) - 1, 2 << 30, (2 << 30) + 1, BYTES - 1]
NEEDED = 2 * BYTES + (3 << 30)  # one tensor a rank, and room


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


def marked(value: int) -> torch.Tensor:
    """`value` everywhere, and another at some places."""
    tensor = torch.full((BYTES,), value, dtype=torch.uint8)
    for number, place in enumerate(MARKS):
        tensor[place] = value + number + 1
    return tensor


def check(tensor: torch.Tensor, value: int, step: int, what: str) -> None:
    for number, place in enumerate(MARKS):
        assert tensor[place].item() == value + step * (number + 1), f"{what} at {place}"
    # numpy, and in parts: torch sums bools slowly, and by way of a copy eight times as large.
    parts = (part.numpy() for part in tensor.split(16 << 20))
    others = sum(int(np.count_nonzero(part != value)) for part in parts)
    assert others == len(MARKS), f"{what}: {others} bytes differ"


def huge() -> dict[str, float]:
    rank = dist.get_rank()
    seconds = {}

    def timed(name: str, begin: float) -> None:
        seconds[name] = time.monotonic() - begin

    tensor = marked(10 + rank)
    begin = time.monotonic()
    dist.broadcast(tensor, 1)
    timed("broadcast", begin)
    check(tensor, 11, 1, "broadcast")
    begin = time.monotonic()
    dist.all_reduce(tensor)
    timed("all_reduce", begin)
    check(tensor, 22, 2, "all_reduce")
    begin = time.monotonic()
    if rank == 0:
        tensor.zero_()
        dist.recv(tensor, 1)
        timed("send and recv", begin)
        check(tensor, 22, 2, "recv")
    else:
        dist.send(tensor, 0)
    return seconds


@taco_only
@pytest.mark.whole(because="no smaller message has offsets beyond 31 bits")
@pytest.mark.skipif(available_bytes() < NEEDED, reason=f"needs {NEEDED >> 30} GiB of free memory")
def test_more_than_two_gib(transport: str) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "warning"}) as ranks:
        print(ranks.initialise(timeout_s=120).run(huge, deadline_s=180)[0])
