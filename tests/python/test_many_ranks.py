"""Many ranks on one machine: nothing overflows, nothing is lost, all join in time."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import START_DEADLINE_S, Ranks, initialise

pytestmark = taco_only


def exchange(elements: int, rounds: int) -> tuple[int, int, int]:
    """All-to-alls of blocks that say whence, whither and when; what the Stack counted."""
    import taco_torch

    rank, world = dist.get_rank(), dist.get_world_size()
    ranks = torch.arange(world, dtype=torch.int64).repeat_interleave(elements)
    received = torch.empty(world * elements, dtype=torch.int64)
    for turn in range(rounds):
        dist.all_to_all_single(received, (turn * world + rank) * world + ranks)
        assert torch.equal(received, (turn * world + ranks) * world + rank)
    stats = taco_torch.stats()
    return stats.socket_overflows, stats.retransmits, stats.bytes_sent


def test_sockets_do_not_overflow_in_an_all_to_all_of_16_ranks() -> None:
    elements, rounds = 16_384, 3  # 128 KiB to each rank: 1.9 MiB arrive at every socket at once
    with Ranks(16, {"TACO_TRANSPORT": "udp", "TACO_LOG": "error"}) as ranks:
        ranks.initialise()
        counted = ranks.run(exchange, elements, rounds)
    assert [overflows for overflows, _, _ in counted] == [0] * 16
    assert min(sent for _, _, sent in counted) > rounds * 15 * elements * 8
    # Many ranks on few cores wait long for a turn; who waits is not taken for lost.
    assert [again for _, again, _ in counted] == [0] * 16


def first_sum(rank: int, world: int, port: int) -> float:
    begin = time.monotonic()
    initialise(rank, world, port)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world
    return time.monotonic() - begin


@pytest.mark.whole(instead="test_sockets_do_not_overflow_in_an_all_to_all_of_16_ranks")
def test_64_ranks_join_and_sum() -> None:
    # torch's store looks up names; where no name server answers, each look-up waits this long.
    with Ranks(64, {"TACO_LOG": "error", "RES_OPTIONS": "timeout:1 attempts:1"}) as ranks:
        ranks.run(time.monotonic)  # all have been forked
        ports = [(rank, 64, ranks.port) for rank in range(64)]
        seconds = ranks.run_each(first_sum, ports, START_DEADLINE_S)
        print(f"64 ranks: init and first all_reduce in {max(seconds):.1f} s")
        ranks.close(30)
