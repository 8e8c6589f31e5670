"""TACO_TUNE: all ranks plan from one measured block, and everything else stays as it was."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks

pytestmark = taco_only


def costs() -> dict[str, float | str]:
    """The block in force, after some use of it by several groups."""
    import taco_torch
    from taco_torch import _C

    world, rank = dist.get_world_size(), dist.get_rank()
    for group in (None, dist.new_group(), dist.new_group(list(range(world))[::-1])):
        for count in (1, 1000, 300_000):
            tensor = torch.full((count,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert bool((tensor == sum(range(world))).all())
    found = _C.planner_costs()
    assert taco_torch.stats().planner_costs == found["block"]
    assert (taco_torch.stats() - taco_torch.stats()).planner_costs == found["block"]
    return dict(found)


def leave() -> str:
    from taco_torch import _C

    dist.destroy_process_group()
    return str(_C.planner_costs()["block"])


@pytest.mark.parametrize("tune", ["0", "1"])
def test_all_ranks_plan_from_one_block(transport: str, tune: str) -> None:
    environment = {"TACO_TRANSPORT": transport, "TACO_LOG": "warning", "TACO_TUNE": tune}
    with Ranks(3, environment) as ranks:
        found = ranks.initialise().run(costs)
        assert all(block == found[0] for block in found), found
        assert found[0]["block"].split()[0] == ("measured" if tune == "1" else "table")
        for name, value in found[0].items():
            if name not in ("block", "wire_gbits"):
                assert math.isfinite(value), name
                assert value > 0, name
        assert [name.split()[0] for name in ranks.run(leave)] == ["table"] * 3


def split() -> None:
    members = [0, 1] if dist.get_rank() < 2 else [2]
    half = dist.group.WORLD.split_group(members)
    tensor = torch.ones(1000)
    half.allreduce([tensor]).wait()
    assert tensor[0].item() == len(members)


def test_a_split_group_plans_as_its_parent() -> None:
    with Ranks(3, {"TACO_LOG": "warning", "TACO_TUNE": "1"}) as ranks:
        ranks.initialise().run(split)


def test_ranks_that_do_not_all_measure_are_told() -> None:
    from spawn_ranks import initialise

    with Ranks(2, {"TACO_LOG": "off"}) as ranks:
        ranks.begin(0, initialise_tuned, ranks.port)
        ranks.begin(1, initialise, 1, 2, ranks.port, "taco", 20.0)
        for outcome in ranks.gather([0, 1], 40):
            assert not outcome.ok
            assert "TACO_TUNE" in outcome.error, outcome


def plan_in_a_subgroup(rank: int, port: int, alone_first: bool) -> tuple[int, int]:
    """The costs that the default group and a group made from it plan from, once one rank has made
    another default group before."""
    from datetime import timedelta

    from spawn_ranks import initialise

    from taco_torch import _C

    minute = timedelta(seconds=60)
    if alone_first:
        alone = _C.ProcessGroupTaco(dist.HashStore(), 0, 1, None, minute, "alone", [])
    initialise(rank, 2, port)
    whole, group = dist.group.WORLD, dist.new_group()
    tensor = torch.ones(300_000)
    dist.all_reduce(tensor, group=group)
    assert bool((tensor == 2).all())
    cpu = torch.device("cpu")
    found = (whole._get_backend(cpu).costs_hash, group._get_backend(cpu).costs_hash)
    if alone_first:
        alone.shutdown()
    return found


@pytest.mark.parametrize("other", [0, 1])
def test_another_default_group_of_one_rank_changes_no_plan(other: int) -> None:
    with Ranks(2, {"TACO_LOG": "warning", "TACO_TUNE": "1"}) as ranks:
        for rank in range(2):
            ranks.begin(rank, plan_in_a_subgroup, rank, ranks.port, rank == other)
        outcomes = ranks.gather([0, 1])
        assert all(outcome.ok for outcome in outcomes), outcomes
        assert len({costs for outcome in outcomes for costs in outcome.value}) == 1, outcomes


def initialise_tuned(port: int) -> None:
    import os

    from spawn_ranks import initialise

    os.environ["TACO_TUNE"] = "1"
    initialise(0, 2, port, "taco", 20.0)
