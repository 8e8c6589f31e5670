"""After a death the job starts again: with a replacement, with the survivors only, with ranks
permuted; under a store that outlives every group and knows the dead rank's keys."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from own_ports import RANGE, own_ports
from spawn_ranks import Ranks, initialise

pytestmark = taco_only

WORLD = 4
VICTIM = 2


@pytest.fixture
def fresh(transport: str) -> Ranks:
    with Ranks(WORLD, {"TACO_TRANSPORT": transport, "TACO_LOG": "off"}) as ranks:
        yield ranks.initialise()


def all_reduce_forever(count: int) -> None:
    tensor = torch.ones(count)
    while True:
        dist.all_reduce(tensor.fill_(1))


def sum_once() -> float:
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    return float(tensor[0])


def start_again(rank: int, world: int, port: int) -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    initialise(rank, world, port)
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert tensor[0].item() == world


def assert_survivors_name_the_victim(ranks: Ranks) -> None:
    for outcome in ranks.gather([rank for rank in range(WORLD) if rank != VICTIM], 20):
        assert outcome.error_type == "PeerLostError", outcome
        assert outcome.fields is not None
        assert outcome.fields["rank"] == VICTIM
        assert f"rank {VICTIM}" in outcome.error


def test_the_survivors_go_on_and_a_replacement_joins(fresh: Ranks) -> None:
    for rank in range(WORLD):
        fresh.begin(rank, all_reduce_forever, 1000)
    time.sleep(0.3)
    fresh.kill(VICTIM)
    assert_survivors_name_the_victim(fresh)
    survivors = [rank for rank in range(WORLD) if rank != VICTIM]
    for place, rank in enumerate(survivors):
        fresh.begin(rank, start_again, place, len(survivors), fresh.port)
    for outcome in fresh.gather(survivors, 30):
        assert outcome.ok, outcome
    fresh.restart(VICTIM)
    for rank in range(WORLD):
        fresh.begin(rank, start_again, (rank + 1) % WORLD, WORLD, fresh.port)
    for outcome in fresh.gather(range(WORLD), 30):
        assert outcome.ok, outcome


def ports_of(pids: list[int]) -> set[int]:
    """UDP ports of these processes alone: other tests may run beside this one."""
    links = [link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = set()
    for link in links:
        with contextlib.suppress(FileNotFoundError):  # closed just now
            sockets.add(os.readlink(link))
    lines = [line.split() for line in Path("/proc/self/net/udp").read_text().splitlines()[1:]]
    own = [line[1] for line in lines if f"socket:[{line[9]}]" in sockets]
    return {int(address.rsplit(":", 1)[1], 16) for address in own}


@pytest.fixture
def first() -> Iterator[int]:
    with own_ports() as port:
        yield port


def test_a_process_on_the_dead_ones_port_hides_no_death(first: int) -> None:
    environment = {"TACO_TRANSPORT": "udp", "TACO_PORT": str(first), "TACO_LOG": "off"}
    environment["TACO_PEER_TIMEOUT_MS"] = "60000"
    with Ranks(WORLD, environment) as ranks:
        ranks.initialise()
        ranks.run(sum_once)
        taken = ports_of([ranks.pid(rank) for rank in range(WORLD)])
        assert len(taken) == WORLD
        assert taken <= set(range(first, first + RANGE))
        # Nobody waits for anything, so nobody looks whether the others live.
        ranks.kill(VICTIM)
        ranks.gather([VICTIM], 30)  # its port is free once it has ended
        with Ranks(2, environment) as heirs:
            heirs.initialise()
            heirs.run(sum_once)
            alive = [ranks.pid(rank) for rank in range(WORLD) if rank != VICTIM]
            alive += [heirs.pid(rank) for rank in range(2)]
            assert taken < ports_of(alive), "nobody has taken the dead one's port"
            for rank in range(WORLD):
                if rank != VICTIM:
                    ranks.begin(rank, all_reduce_forever, 1000)
            # Half of the peers' timeout, which is how long that death used to stay unseen.
            for outcome in ranks.gather([rank for rank in range(WORLD) if rank != VICTIM], 30):
                assert outcome.error_type == "PeerLostError", outcome
                assert outcome.fields is not None
                assert outcome.fields["rank"] == VICTIM
