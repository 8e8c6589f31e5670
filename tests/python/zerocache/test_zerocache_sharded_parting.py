"""Ranks that share a model's parameters, and part: exceptions, other ways, closed caches.

All hear of it in the same pass, and what comes after is as if it had not been.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Pool, Ranks
from torch import nn
from zerocache_models import TinyGPT
from zerocache_ranks import adamw, alone, own_batches, plain_sgd, refused, train
from zerocache_spread import average, sharded

pytestmark = taco_only


@pytest.fixture(params=["gloo", "taco"])
def either(request: pytest.FixtureRequest, jobs: Pool) -> Ranks:
    return jobs.get(request.param, 2)


class Tower(nn.Module):
    """Linear layers, one of which is used twice, or raises, when it is told to."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(64, 64)
        self.body = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.raises, self.twice = False, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.body):
            x = torch.tanh(layer(x))
            if self.raises and index == 0:
                raise ZeroDivisionError("in the middle")
            if self.twice and index == 3:
                x = torch.tanh(layer(x))
        out: torch.Tensor = self.last(x).square().sum()
        return out


def inputs() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    while True:
        yield torch.randn(4, 64, generator=generator)


def beside(folder: str, caps: tuple[int, int, int]) -> tuple[Any, Any, Callable[[], None]]:
    """A sharded tower, another of each rank alone, and a call that steps both alike."""
    ours = sharded(folder, Tower(), plain_sgd, caps)
    theirs = alone(folder, Tower(), plain_sgd)
    data = inputs()

    def step() -> None:
        x = next(data)
        for (_, model, optimizer), by_hand in ((ours, False), (theirs, True)):
            optimizer.zero_grad()
            model(x).backward()
            if by_hand:
                average(model)
            optimizer.step()

    return ours, theirs, step


def assert_same(ours: Any, theirs: Any) -> None:
    for name, _ in theirs[1].named_parameters():
        assert torch.equal(ours[0].full(name), theirs[0].full(name)), name


def lose_a_gradient(folder: str) -> None:
    ours, theirs, step = beside(folder, (7, 24, 400))
    cache, model, optimizer = ours
    data = inputs()
    step()
    step()
    with cache.accumulate():
        model(next(data)).backward()
    model.raises = dist.get_rank() == 1
    assert refused(lambda: model(next(data)))[0]
    model.raises = False
    refused(optimizer.step)
    step()
    step()
    assert_same(ours, theirs)


def test_gradients_of_a_pass_that_failed_are_not_touched_again(two: Ranks, tmp_path: Any) -> None:
    two.run(lose_a_gradient, str(tmp_path))


# How one rank goes on after a failure of one: (what it raises, batch by batch) is alike on all.


def fail_in_forward(folder: str, training: bool) -> list[str]:
    _, model, optimizer = sharded(folder, Tower(), plain_sgd)
    data, found = inputs(), []
    for index in range(5):
        model.raises = dist.get_rank() == 1 and index == 1

        def one() -> None:
            if not training:
                with torch.no_grad():
                    model(next(data))
                return
            loss = model(next(data)) + model(next(data))
            loss.backward()
            optimizer.step()

        found.append(refused(one))
        optimizer.zero_grad()
    assert "ZeroDivisionError" in "".join(found[1])
    return [text for text, _ in found]


@pytest.mark.parametrize("training", [False, True])
def test_an_exception_in_a_forward_pass_is_one_of_all(
    either: Ranks, tmp_path: Any, training: bool
) -> None:
    for kinds in either.run(fail_in_forward, str(tmp_path), training):
        assert [bool(kind) for kind in kinds] == [False, True, False, False, False], kinds


def fail_in_backward(folder: str) -> list[tuple[str, str]]:
    ours, theirs, step = beside(folder, (32, 24, 400))
    _, model, optimizer = ours
    data, fails = inputs(), [False]

    def hook(*_: Any) -> None:
        if fails[0]:
            raise ZeroDivisionError

    model.body[0].register_full_backward_hook(hook)
    found = []
    step()
    for index in range(4):

        def one() -> None:
            optimizer.zero_grad()
            model(next(data)).backward()

        fails[0] = dist.get_rank() == 1 and index == 1
        found.append(refused(one))
    step()
    assert_same(ours, theirs)
    return found


def test_an_exception_in_a_backward_pass_is_one_of_all(either: Ranks, tmp_path: Any) -> None:
    for rank, found in enumerate(either.run(fail_in_backward, str(tmp_path))):
        assert [bool(kind) for kind, _ in found] == [False, True, False, False], found
        if rank == 0:
            assert "rank 1: its backward pass has ended by an exception" in found[1][1]


def step_without_zeroing(folder: str) -> list[bool]:
    _, model, optimizer = sharded(folder, Tower(), plain_sgd)
    data, found = inputs(), []

    def step() -> None:
        model(next(data)).backward()
        optimizer.step()

    for index in range(6):
        model.twice = dist.get_rank() == 1 and index == 2
        found.append(bool(refused(step)[0]))
    return found


def test_a_pass_after_one_that_parted_begins_anew(either: Ranks, tmp_path: Any) -> None:
    for found in either.run(step_without_zeroing, str(tmp_path)):
        assert found == [False, False, True, False, False, False]


def read_after_a_failure(folder: str) -> None:
    ours, theirs, step = beside(folder, (32, 24, 400))
    _, model, _ = ours
    step()
    model.raises = dist.get_rank() == 1
    assert refused(lambda: model(next(inputs())))[0]
    assert_same(ours, theirs)
    assert len(model.state_dict()) == 18


def test_parameters_can_be_read_after_a_pass_that_failed(two: Ranks, tmp_path: Any) -> None:
    two.run(read_after_a_failure, str(tmp_path))


def step_after_reading(folder: str) -> None:
    cache, model, optimizer = sharded(folder, Tower(), plain_sgd)
    theirs = alone(folder, Tower(), plain_sgd)
    data = inputs()
    with cache.accumulate():
        model(next(data)).backward()
    model(next(data)).backward()
    model.raises = dist.get_rank() == 1
    assert refused(lambda: model(next(data)))[0]
    model.raises = False
    # All have dropped the gradients of this step, whatever they call next.
    assert_same((cache, model), theirs)
    optimizer.step()
    assert_same((cache, model), theirs)


def test_gradients_of_a_pass_that_failed_are_gone_after_a_read(
    either: Ranks, tmp_path: Any
) -> None:
    either.run(step_after_reading, str(tmp_path))


def use_over_a_failure(folder: str) -> None:
    cache, model, optimizer = sharded(folder, Tower(), plain_sgd, (12, 8, 400))
    data = inputs()
    train(model, optimizer, 2, data)
    optimizer.zero_grad()
    parameter = model.last.weight
    expected = cache.full(parameter)
    fails = [False]

    def hook(*_: Any) -> None:
        if fails[0]:
            raise ZeroDivisionError

    model.body[0].register_full_backward_hook(hook)
    with cache.use(parameter):
        fails[0] = dist.get_rank() == 1
        assert refused(lambda: model(next(data)).backward())[0]
        fails[0] = False
        model(next(data)).backward()
        optimizer.zero_grad()
        assert torch.equal(parameter, expected)
        model.twice = dist.get_rank() == 1
        refused(lambda: model(next(data)).backward())
        optimizer.zero_grad()
        model.twice = False
        assert torch.equal(parameter, expected)
        model(next(data)).backward()
        optimizer.zero_grad()
        assert torch.equal(parameter, expected)


def test_what_is_in_use_stays_over_a_pass_that_failed(two: Ranks, tmp_path: Any) -> None:
    two.run(use_over_a_failure, str(tmp_path))


# Passes that add up, and clipping.


def add_up(folder: str, order: str) -> None:
    ours, theirs, step = beside(folder, (32, 24, 400))
    cache, model, optimizer = ours
    other_cache, other, other_optimizer = theirs
    data = inputs()
    step()
    optimizer.zero_grad()
    other_optimizer.zero_grad()
    for kind in order:
        x = next(data)
        if kind == "c":
            norm = cache.clip_grad_norm_(0.1)
            expected = torch.nn.utils.clip_grad_norm_(list(other.parameters()), 0.1)
            torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
            continue
        if kind == "a":
            with cache.accumulate():
                model(x).backward()
        else:
            model(x).backward()
        kept = [copy.copy(p.grad) for p in other.parameters()]
        for parameter in other.parameters():
            parameter.grad = None
        other(x).backward()
        average(other)
        for parameter, before in zip(other.parameters(), kept, strict=True):
            if before is not None:
                parameter.grad += before
    optimizer.step()
    other_optimizer.step()
    for name, _ in other.named_parameters():
        one, two = cache.full(name), other_cache.full(name)
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("order", ["pap", "pa", "ac", "pcp", "pcac", "apc"])
def test_passes_clipping_and_accumulating_mix(two: Ranks, tmp_path: Any, order: str) -> None:
    """p: a pass; a: one inside accumulate(); c: clipping."""
    two.run(add_up, str(tmp_path), order)


# Room, and ends.


class Wide(nn.Module):
    """Needs most at once where another path leads to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.small = nn.ModuleList(nn.Linear(64, 64) for _ in range(10))
        self.up, self.big, self.down = nn.Linear(64, 192), nn.Linear(192, 192), nn.Linear(192, 64)

    def forward(self, x: torch.Tensor, layers: int) -> torch.Tensor:
        for layer in self.small[:layers]:
            x = torch.tanh(layer(x))
        out: torch.Tensor = self.big(torch.cat([x] * 3, 1)) if layers < 10 else x
        return out.sum()


def take_another_path(folder: str) -> None:
    for device in range(2, 100):
        place = f"{folder}/{device}"  # one that does not fit keeps its directory
        os.makedirs(place, exist_ok=True)
        try:
            _, model, optimizer = sharded(place, Wide(), plain_sgd, (device, 24, 400))
            break
        except ValueError:
            continue
    for layers in (10, 10, 0, 3, 10):
        model(torch.randn(2, 64), layers).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(torch.randn(2, 64), 10 - layers)


def test_the_least_room_does_for_every_path(two: Ranks, tmp_path: Any) -> None:
    two.run(take_another_path, str(tmp_path))


def close_alone(folder: str) -> tuple[str, str]:
    cache, model, optimizer = sharded(folder, TinyGPT(2))
    data = own_batches()

    def all_of_it() -> None:
        with cache:
            for index in range(3):
                if dist.get_rank() == 1 and index == 1:
                    raise ZeroDivisionError("no data")
                train(model, optimizer, 1, data)

    return refused(all_of_it)


def test_the_others_hear_of_a_rank_that_leaves(jobs: Pool, tmp_path: Any) -> None:
    found = jobs.get("taco", 2).run(close_alone, str(tmp_path))
    assert found[1] == ("ZeroDivisionError", "no data")
    assert "rank 1: ZeroDivisionError: no data" in found[0][1]


def fail_to_wrap(folder: str) -> tuple[str, str]:
    from taco_torch.zerocache import hooks

    attach = hooks.attach

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("disk full")

    if dist.get_rank() == 1:
        hooks.attach = refuse
    found = refused(lambda: sharded(folder, TinyGPT(2), adamw))
    hooks.attach = attach
    train(*sharded(f"{folder}", TinyGPT(2))[1:], 1, own_batches())
    return found


def test_what_fails_in_wrap_on_one_rank_does_on_all(either: Ranks, tmp_path: Any) -> None:
    found = either.run(fail_to_wrap, str(tmp_path))
    assert found[1] == ("OSError", "disk full")
    assert found[0] == ("RuntimeError", "rank 1: OSError: disk full")
