"""Ranks that may have few file descriptors open: they work, or the one that lacks some says so, and
nobody waits for good."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Outcome, Ranks, initialise

pytestmark = taco_only

WORLD, LIMITED = 3, 1


def nothing() -> None:
    pass


def may_open(more: int) -> None:
    """So many descriptors beyond those that are open now, and none can be had by asking."""
    have = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    limit = have[-1] + 1  # the one by which they were listed is free again
    free = limit - len(have) + 1
    for _ in range(free - more):  # of those between, some are taken for good
        os.open(os.devnull, os.O_RDONLY)
    limit += max(0, more - free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def join_and_exchange(rank: int, port: int, timeout_s: float) -> int:
    initialise(rank, WORLD, port, timeout_s=timeout_s)
    for size in (1, 300_000):
        summed = torch.full((size,), float(rank))
        dist.all_reduce(summed)
        assert summed[-1].item() == sum(range(WORLD))
    dist.barrier()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    dist.destroy_process_group()
    return limit


def outcomes_with(transport: str, more: int, timeout_s: float) -> list[Outcome]:
    enter: list[Callable[[], None]] = [nothing] * WORLD
    enter[LIMITED] = partial(may_open, more)
    with Ranks(WORLD, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}, enter=enter) as ranks:
        for rank in range(WORLD):
            ranks.begin(rank, join_and_exchange, rank, ranks.port, timeout_s)
        return ranks.gather(range(WORLD), 90)


def names_the_limit(outcome: Outcome) -> bool:
    """Its own, or as a peer says it of this rank."""
    return re.search(r"(the|its) limit is \d+ \(ulimit -n\)", outcome.error) is not None


@pytest.mark.parametrize("more", [4, 8])
def test_a_rank_without_descriptors_for_its_engine_says_so(transport: str, more: int) -> None:
    outcomes = outcomes_with(transport, more, timeout_s=10)
    assert outcomes[LIMITED].error_type == "TacoError", outcomes[LIMITED]
    assert names_the_limit(outcomes[LIMITED]), outcomes[LIMITED].error
    for rank in (0, 2):
        assert outcomes[rank].error_type == "RendezvousError", outcomes[rank]
        assert f"rank {LIMITED} of {WORLD}" in outcomes[rank].error


@pytest.mark.parametrize("more", [14, 16, 18, 20, 22])
def test_a_rank_without_descriptors_for_its_peers_works_or_says_so(more: int) -> None:
    outcomes = outcomes_with("shm", more, timeout_s=30)
    if all(outcome.ok for outcome in outcomes):
        return
    for outcome in outcomes:
        assert outcome.error_type == "PeerLostError", outcome
    assert names_the_limit(outcomes[LIMITED]), outcomes[LIMITED].error


def test_a_rank_with_few_descriptors_works(transport: str) -> None:
    outcomes = outcomes_with(transport, 26, timeout_s=30)
    assert all(outcome.ok for outcome in outcomes), outcomes
    assert outcomes[LIMITED].value < 64 <= outcomes[0].value
