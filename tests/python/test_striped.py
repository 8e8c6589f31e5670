"""Large operations that several engines carry out at once (TACO_HARP_ENGINES)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

import taco_torch

pytestmark = taco_only

WORLD = 3
LARGE = 2 * 2**20 + 3  # elements of four bytes: 8 MiB, which no number of parts divides


@pytest.fixture
def engines(transport: str) -> Iterator[Ranks]:
    environment = {"TACO_TRANSPORT": transport, "TACO_HARP_ENGINES": "2", "TACO_LOG": "error"}
    with Ranks(WORLD, environment) as ranks:
        yield ranks.initialise(timeout_s=30)


def of_rank(rank: int, count: int = LARGE) -> torch.Tensor:
    """Whole numbers, whose sums are exact in any order."""
    return (torch.arange(count) % 1000 + rank).to(torch.float32)


def all_reduce() -> bool:
    tensor = of_rank(dist.get_rank())
    dist.all_reduce(tensor)
    return bool((tensor == sum(of_rank(rank) for rank in range(WORLD))).all())


def reduce() -> bool:
    tensor = of_rank(dist.get_rank())
    dist.reduce(tensor, 1)
    return dist.get_rank() != 1 or bool(
        (tensor == sum(of_rank(rank) for rank in range(WORLD))).all()
    )


def broadcast() -> bool:
    tensor = of_rank(dist.get_rank())
    dist.broadcast(tensor, 2)
    return torch.equal(tensor, of_rank(2))


def all_gather() -> bool:
    gathered = torch.empty(WORLD * LARGE)
    dist.all_gather_into_tensor(gathered, of_rank(dist.get_rank()))
    return torch.equal(gathered, torch.cat([of_rank(rank) for rank in range(WORLD)]))


def reduce_scatter() -> bool:
    rank = dist.get_rank()
    scattered = torch.empty(LARGE)
    dist.reduce_scatter_tensor(scattered, of_rank(rank, WORLD * LARGE))
    expected = sum(of_rank(other, WORLD * LARGE) for other in range(WORLD))
    assert isinstance(expected, torch.Tensor)
    return torch.equal(scattered, expected[rank * LARGE : (rank + 1) * LARGE])


def records() -> list[tuple[int, int]]:
    """Operations of the default group: the number of each, and how many engines carried it out."""
    entries = taco_torch.flight_recorder()["entries"]
    return [(entry["sequence"], entry["engines"]) for entry in entries if entry["group"] == "0"]


def records_of(call: Callable[[], bool]) -> list[tuple[int, int]]:
    before = records()
    assert call()
    return records()[len(before) :]


def small() -> bool:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    return bool((tensor == WORLD).all())


def test_a_large_operation_is_carried_out_by_all_engines_and_is_one(engines: Ranks) -> None:
    calls = [all_reduce, reduce, broadcast, all_gather, reduce_scatter]
    for number, call in enumerate(calls, start=1):
        assert engines.run(records_of, call) == [[(number, 2)]] * WORLD, call
    assert engines.run(records_of, small) == [[(len(calls) + 1, 1)]] * WORLD


def sum_of(counts: list[int]) -> str:
    with pytest.raises(taco_torch.MismatchError) as error:
        dist.all_reduce(torch.ones(counts[dist.get_rank()]))
    return str(error.value)


@pytest.mark.parametrize("counts", [[LARGE, 10, LARGE], [10, LARGE, 10], [LARGE, LARGE, 2 * LARGE]])
def test_ranks_that_disagree_about_a_size_are_told(engines: Ranks, counts: list[int]) -> None:
    for text in engines.run(sum_of, counts):
        for count in set(counts):
            assert f"all_reduce SUM float32 x {count}" in text


def losses() -> list[int]:
    lost = []
    for count in (LARGE, 10, LARGE):
        with pytest.raises(taco_torch.PeerLostError) as error:
            dist.all_reduce(torch.ones(count))
        lost.append(error.value.rank)
    return lost


def test_a_rank_that_is_killed_is_lost_to_all_parts(engines: Ranks) -> None:
    engines.run(small)
    engines.kill(1)
    for rank in (0, 2):
        engines.begin(rank, losses)
    for outcome in engines.gather([0, 2], 60):
        assert outcome.value == [1, 1, 1], outcome


def in_groups_of_their_own() -> list[bool]:
    """The home of the first is the other engine."""
    sums = []
    for _ in range(2):
        group = dist.new_group()
        tensor = of_rank(dist.get_rank())
        dist.all_reduce(tensor, group=group)
        sums.append(bool((tensor == sum(of_rank(rank) for rank in range(WORLD))).all()))
        dist.destroy_process_group(group)
    return sums


def test_groups_of_either_engine_come_and_go(engines: Ranks) -> None:
    for _ in range(2):
        assert engines.run(in_groups_of_their_own) == [[True, True]] * WORLD
