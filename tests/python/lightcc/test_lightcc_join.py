"""Ranks that run out of inputs, in DistributedDataParallel's join(): no gradient is lost or
doubled, and what they could not hear of they catch up on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import OWN_HOSTS, Bag, assert_alike, flat, owed, same
from lightcc_sharded import ranks_of_two_hosts, whole_numbers
from spawn_ranks import Ranks
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

lightcc = taco_torch.lightcc
SIZES = (3000, 300)
BY_VARIABLES: dict[str, dict[str, str]] = {
    "16 bits": {"LIGHT_WIRE_DTYPE": "float16"},
    "TopK": {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "0", "LIGHT_TOPK_RATIO": "0.02"},
}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Ranks]:
    """Two ranks on each of two hosts: each sends a part of what both of them have."""
    with ranks_of_two_hosts() as made:
        yield made


@pytest.fixture(params=BY_VARIABLES)
def switched_on(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(2, OWN_HOSTS | BY_VARIABLES[request.param]) as made:
        yield made.initialise()


def made(**options: Any) -> DistributedDataParallel:
    model = DistributedDataParallel(Bag(SIZES), **options)
    lightcc.compress(model, "topk", ratio=0.05, threshold=0)
    return model


def inputs_of(rank: int) -> int:
    return 3 + 2 * rank


def computed(step: int, everyone: bool = False) -> torch.Tensor:
    """The average over all ranks, of which some have no gradients any more."""
    world = dist.get_world_size()
    parts = [
        flat([g for g in whole_numbers(step, rank, SIZES) if g is not None])
        for rank in range(world)
        if everyone or step < inputs_of(rank)
    ]
    return sum(parts, torch.zeros(sum(SIZES))) / world


def weights(model: DistributedDataParallel) -> torch.Tensor:
    return flat(list(model.parameters())).detach()


def trains_without_inputs(view: bool) -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(Bag(SIZES), gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with model.join():
        for step in range(3 if rank == 1 else 0):
            optimizer.zero_grad()
            model(whole_numbers(step, rank, SIZES)).backward()
            optimizer.step()
    assert_alike(weights(model))
    assert bool(weights(model).any())
    other = DistributedDataParallel(Bag(SIZES))
    with (
        pytest.raises(NotImplementedError, match="divide_by_initial_world_size"),
        other.join(divide_by_initial_world_size=False),
    ):
        pass


@pytest.mark.parametrize("view", [False, True])
def test_a_rank_without_any_input_is_switched_on_by_variables(
    switched_on: Ranks, view: bool
) -> None:
    switched_on.run(trains_without_inputs, view)


def is_bad(step: int, how: str) -> bool:
    """A skipped step loses what travelled whole, which all does once a rank has no inputs."""
    return how != "step" and step % 2 == 0 and (how == "drop" or step >= 4)


def trains_unevenly(how: str, unused: bool) -> None:
    """``how``: what becomes of the gradients of bad steps."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = made(find_unused_parameters=unused)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=how == "skip")
    expected = torch.zeros(sum(SIZES))
    with model.join():
        for step in range(inputs_of(rank)):
            gradients = whole_numbers(step, rank, SIZES)
            if is_bad(step, how) and how == "skip" and rank == last:
                assert gradients[1] is not None
                gradients[1][0] = float("inf")
            scaler.scale(model(gradients)).backward()
            if not (is_bad(step, how) and how == "drop"):
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    for step in range(inputs_of(last)):
        if not is_bad(step, how):
            expected += computed(step)
    assert_alike(weights(model))
    same(owed(model) - weights(model), expected)
    told: list[Any] = [scaler.state_dict()]
    dist.broadcast_object_list(told, last)
    scaler.load_state_dict(told[0])
    for step in range(100, 103):
        scaler.scale(model(whole_numbers(step, rank, SIZES))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        expected += computed(step, everyone=True)
    assert_alike(weights(model))
    same(owed(model) - weights(model), expected)


@pytest.mark.parametrize("how", ["step", "drop", "skip"])
@pytest.mark.parametrize("unused", [False, True])
def test_uneven_inputs_lose_nothing(hosts: Ranks, how: str, unused: bool) -> None:
    hosts.run(trains_unevenly, how, unused)


def runs_out_between_two_passes_of_a_step() -> None:
    """The others step with what it has sent, and it does not know."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    expected, applied, before = torch.zeros(sum(SIZES)), 0.0, torch.zeros(sum(SIZES))
    with model.join():
        for step in range(4 if rank == last else 3):
            model(whole_numbers(step, rank, SIZES)).backward()
            gradient = flat([p.grad for p in model.parameters() if p.grad is not None])
            if step < 3:
                applied = applied + gradient - before
            before = gradient.clone()
            if step % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
                before.zero_()
    optimizer.zero_grad()
    for step in range(3):
        expected += computed(step, everyone=True)
    same(owed(model), expected - applied)


def test_a_rank_that_runs_out_in_the_middle_of_a_step_catches_up(hosts: Ranks) -> None:
    hosts.run(runs_out_between_two_passes_of_a_step)
