"""Several engines in a process (TACO_HARP_ENGINES): groups of both, beside each other."""

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
from spawn_ranks import Ranks

import taco_torch

pytestmark = taco_only

WORLD = 3


@pytest.fixture(params=["wherever there is room", "on cores of their own"])
def engines(request: pytest.FixtureRequest, transport: str) -> Iterator[Ranks]:
    """Ranks of two engines each."""
    environment = {"TACO_TRANSPORT": transport, "TACO_HARP_ENGINES": "2", "TACO_LOG": "error"}
    if request.param == "on cores of their own":
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            pytest.skip("there is one core")
        environment["TACO_HARP_CORES"] = f"{cores[0]},{cores[-1]}"
    with Ranks(WORLD, environment) as ranks:
        yield ranks.initialise(timeout_s=30)


def names_of_engines() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
            names.append((task / "comm").read_text().strip())
    return sorted(name for name in names if name.startswith("taco-engine-"))


def sums_of_all(groups: list[dist.ProcessGroup | None]) -> None:
    """Small and large operations of all groups are under way at once."""
    for count in (1, 300_000):
        tensors = [torch.full((count,), float(i + 1)) for i in range(len(groups))]
        works = [
            dist.all_reduce(tensor, group=group, async_op=True)
            for tensor, group in zip(tensors, groups, strict=True)
        ]
        for i, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
            work.wait()
            assert bool((tensor == WORLD * (i + 1)).all())


def use_groups() -> list[str]:
    groups = [None, dist.new_group(), dist.new_group(), dist.new_group()]
    for _ in range(5):
        sums_of_all(groups)
    names = names_of_engines()
    for group in groups[1:]:
        dist.destroy_process_group(group)
    return names


def test_groups_of_both_engines_work_at_once_and_are_made_again(engines: Ranks) -> None:
    for _ in range(2):
        for names in engines.run(use_groups):
            assert names == ["taco-engine-0", "taco-engine-1"]


def engines_after_the_last_group() -> list[str]:
    dist.destroy_process_group()
    end = time.monotonic() + 10
    # A thread that has been joined is listed until the kernel has taken it down.
    while names_of_engines() and time.monotonic() < end:
        time.sleep(0.01)
    return names_of_engines()


def test_engines_end_with_their_last_group(engines: Ranks) -> None:
    engines.run(use_groups)
    assert engines.run(engines_after_the_last_group) == [[]] * WORLD


def losses_of_all_groups() -> list[int]:
    """The rank that each group misses."""
    lost = []
    for group in _groups:
        with pytest.raises(taco_torch.PeerLostError) as error:
            dist.all_reduce(torch.ones(1000), group=group)
        lost.append(error.value.rank)
    return lost


_groups: list[dist.ProcessGroup | None] = []  # of a rank


def make_groups() -> None:
    _groups.extend([None, dist.new_group(), dist.new_group()])
    sums_of_all(_groups)


def test_a_rank_that_is_killed_is_missed_by_groups_of_both_engines(engines: Ranks) -> None:
    engines.run(make_groups)
    engines.kill(1)
    for rank in (0, 2):
        engines.begin(rank, losses_of_all_groups)
    for outcome in engines.gather([0, 2], 60):
        assert outcome.value == [1, 1, 1], outcome


def use_in_a_forked_child() -> int:
    make_groups()
    child = os.fork()
    if child == 0:
        try:
            for group in _groups:
                with pytest.raises(RuntimeError, match="was forked from one that uses taco_torch"):
                    dist.all_reduce(torch.ones(2), group=group)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    sums_of_all(_groups)
    return status


def test_a_forked_child_uses_none_of_them(engines: Ranks) -> None:
    assert engines.run(use_in_a_forked_child) == [0] * WORLD


def start(cores: str) -> None:
    os.environ["TACO_HARP_CORES"] = cores
    dist.init_process_group("taco", store=dist.HashStore(), rank=0, world_size=2)


def test_a_wrong_number_of_cores_is_an_error_that_says_how_many() -> None:
    own = [{"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"} for rank in range(2)]
    with Ranks(2, {"TACO_HARP_ENGINES": "2"}, own) as ranks:
        for outcome in ranks.outcomes(start, "0,1"):
            assert outcome.error_type == "ValueError", outcome
            for part in ('TACO_HARP_CORES="0,1" names 2 cores', "2 engines", "2 ranks", "need 4"):
                assert part in outcome.error
