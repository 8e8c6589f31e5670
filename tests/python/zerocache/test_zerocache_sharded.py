"""A ZeroCache on each of several ranks, of which each keeps a part of the parameters, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zerocache_ranks as on_ranks
from conftest import taco_only
from spawn_ranks import Pool, Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zerocache_models import PAGE, TinyGPT, assert_same_state, batches, make_cache
from zerocache_ranks import adamw, alone, own_batches, refused
from zerocache_spread import CAPS, average, sharded

pytestmark = taco_only

MAKES = {name: getattr(on_ranks, name) for name in ("adamw", "sgd", "lion", "adafactor")}
Between = Callable[[Any, nn.Module], object]


# Ours, and a cache of each rank's own, whose gradients are averaged by hand.


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    # Two addends are added alike, whoever does it.
    exact = dist.get_world_size() == 2 and one.dtype == torch.float32
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 2e-3, "atol": 2e-4}
    torch.testing.assert_close(one, other.to(one.dtype), **tolerance)


def assert_nearly(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)


def assert_same_parameters(cache: Any, other: Any, close: Any = assert_close) -> None:
    for name in on_ranks.names_of(cache._model):
        close(cache.full(name), other.full(name))


def train_beside(
    ours: tuple[Any, Any, Any],
    theirs: tuple[Any, Any, Any],
    steps: int,
    clip: Callable[[Any], Any] | None = None,
    close: Any = assert_close,
) -> None:
    (cache, model, optimizer), (_, other, other_optimizer) = ours, theirs
    data = own_batches()
    for _ in range(steps):
        tokens = next(data)
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        other_optimizer.zero_grad()
        other_loss = other(tokens)
        other_loss.backward()
        if clip is None:
            close(loss.detach(), other_loss.detach())
        average(other)
        if clip is not None:
            norm = clip(cache.clip_grad_norm_)
            other_norm = clip(partial(torch.nn.utils.clip_grad_norm_, list(other.parameters())))
            torch.testing.assert_close(norm, other_norm, rtol=1e-5, atol=0)
        optimizer.step()
        other_optimizer.step()


def step_beside(folder: str, make: str) -> dict[str, Any]:
    ours = sharded(folder, TinyGPT(2), MAKES[make])
    theirs = alone(folder, TinyGPT(2), MAKES[make])
    # Sums over rows and columns are added up in another order.
    close = assert_nearly if make == "adafactor" else assert_close
    train_beside(ours, theirs, 4, close=close)
    with torch.no_grad():
        tokens = next(batches())
        close(ours[1](tokens), theirs[1](tokens))
    assert "gathered from other ranks" in ours[0].report()
    if make != "lion":  # the sign of a difference of rounding is a whole step
        assert_same_parameters(ours[0], theirs[0], close)
    stats: dict[str, Any] = ours[0].stats()
    ours[0].close()
    return stats


def show_timeline(folder: str) -> list[str]:
    import json

    import taco_torch

    _, model, optimizer = sharded(folder, TinyGPT(2))
    path = Path(folder) / f"trace-{dist.get_rank()}.json"
    with taco_torch.timeline(path):
        on_ranks.train(model, optimizer, 2, own_batches())
    events = json.loads(path.read_text())["traceEvents"]
    return [event["tid"] for event in events]


def test_what_travels_has_rows_in_the_timeline(two: Ranks, tmp_path: Path) -> None:
    for rows in two.run(show_timeline, str(tmp_path)):
        assert {"ranks, gather", "ranks, average"} <= set(rows)


@pytest.mark.parametrize("make", MAKES)
def test_ranks_learn_what_one_alone_would(job: Ranks, tmp_path: Path, make: str) -> None:
    parameters = sum(p.numel() * p.element_size() for p in TinyGPT(2).parameters())
    found = job.run(step_beside, str(tmp_path), make)
    assert sum(stats["parameter_bytes"] for stats in found) == parameters
    for stats in found:
        assert stats["gathers"]["ahead"] > stats["gathers"]["stripes"] / 2
        assert stats["parameter_bytes"] < parameters / job.world + 2 * PAGE


def step_mixed(folder: str, make: str) -> None:
    ours = sharded(folder, on_ranks.mixed_model(), MAKES[make])
    theirs = alone(folder, on_ranks.mixed_model(), MAKES[make])
    for _ in range(3):
        tokens = next(own_batches())
        for _, model, optimizer in (ours, theirs):
            optimizer.zero_grad()
            model(tokens).backward()
            average(model)
            optimizer.step()
    for name in on_ranks.names_of(ours[1]):
        one, other = ours[0].full(name), theirs[0].full(name)
        assert one.dtype == other.dtype
        # By hand the mean is rounded to bfloat16, ours is not.
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)
    assert torch.equal(ours[0].full("places"), TinyGPT(2).places.detach()), "it is frozen"


@pytest.mark.parametrize("make", ["adamw", "adafactor"])
def test_bfloat16_frozen_and_tied_parameters(two: Ranks, tmp_path: Path, make: str) -> None:
    two.run(step_mixed, str(tmp_path), make)


def step_clipped(folder: str, norm_type: float) -> None:
    def clip(clip_grad_norm: Any) -> Any:
        norm = clip_grad_norm(0.1, norm_type)
        assert norm > 0.1
        return norm

    ours, theirs = sharded(folder, TinyGPT(2)), alone(folder, TinyGPT(2), adamw)
    train_beside(ours, theirs, 3, clip)
    for name in on_ranks.names_of(theirs[1]):
        assert_nearly(ours[0].full(name), theirs[0].full(name))


@pytest.mark.parametrize("norm_type", [2.0, 3.0, math.inf])
def test_gradients_can_be_clipped(job: Ranks, tmp_path: Path, norm_type: float) -> None:
    job.run(step_clipped, str(tmp_path), norm_type)


def add_up(folder: str, inside: bool) -> None:
    cache, model, optimizer = sharded(folder, TinyGPT(2))
    other_cache, other, other_optimizer = alone(folder, TinyGPT(2), adamw)
    data = own_batches()
    for _ in range(2):
        first, second = next(data), next(data)
        model(next(data)).backward()
        optimizer.zero_grad()  # that pass is forgotten
        other_optimizer.zero_grad()
        if inside:
            with cache.accumulate():
                model(first).backward()
            assert model.norm.weight.grad is not None
        else:
            model(first).backward()
        model(second).backward()
        other(first).backward()
        other(second).backward()
        average(other)
        optimizer.step()
        optimizer.zero_grad()
        other_optimizer.step()
    for name in on_ranks.names_of(other):
        assert_nearly(cache.full(name), other_cache.full(name))


@pytest.mark.parametrize("inside", [True, False])
def test_gradients_of_several_passes_add_up(two: Ranks, tmp_path: Path, inside: bool) -> None:
    two.run(add_up, str(tmp_path), inside)


class Checkpointed(TinyGPT):
    """Computes its blocks again in the backward pass."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = self.head(self.norm(x)).flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens.roll(-1, 1).flatten())


def step_checkpointed(folder: str) -> None:
    ours, theirs = sharded(folder, Checkpointed(2)), alone(folder, TinyGPT(2), adamw)
    train_beside(ours, theirs, 3)
    assert_same_parameters(ours[0], theirs[0])


def test_activations_may_be_computed_again(two: Ranks, tmp_path: Path) -> None:
    two.run(step_checkpointed, str(tmp_path))


def step_compiled(folder: str) -> None:
    ours, theirs = sharded(folder, TinyGPT(2)), alone(folder, TinyGPT(2), adamw)
    cache, model, optimizer = ours
    graphs = []

    def counted(module: Any, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    train_beside((cache, model, optimizer), theirs, 1)
    model.compile(backend=counted)
    train_beside((cache, model, optimizer), theirs, 2)
    assert len(graphs) > 2 * len(model.blocks)  # cut at the modules, for the ranks to gather them
    assert_same_parameters(cache, theirs[0])


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_compiled_model_is_cut_at_its_modules(two: Ranks, tmp_path: Path) -> None:
    two.run(step_compiled, str(tmp_path))


# Room.


def within(folder: str, caps: tuple[int, int, int], early: bool) -> None:
    cache, model, optimizer = sharded(folder, TinyGPT(6), caps=caps, step_in_backward=early)
    on_ranks.train(model, optimizer, 2, own_batches())
    cache.close()


@pytest.mark.parametrize("early", [False, True], ids=["at the end", "in backward"])
def test_each_rank_needs_room_for_its_part_alone(job: Ranks, tmp_path: Path, early: bool) -> None:
    parameters = sum(p.numel() * p.element_size() for p in TinyGPT(6).parameters())
    pages = (
        3 * parameters // job.world // PAGE + 10 + 6 * (job.world - 1)
    )  # AdamW has two more of each
    device = 6 * job.world + 1 + early  # the embedding and a module beside it
    job.run(within, str(tmp_path), (device, 8, pages - device - 8), early)
    for caps, name in (
        ((2, 8, 400), "device"),
        ((device, 8, pages // 2 - device), "the sum of memory and disk"),
    ):
        outcomes = job.outcomes(within, str(tmp_path), caps, early)
        assert all(outcome.error_type == "ValueError" for outcome in outcomes)
        assert "does not fit into the cache" in outcomes[0].error
        assert name in outcomes[0].error


def build_inside(folder: str) -> None:
    cache = make_cache(Path(folder) / f"built-{dist.get_rank()}", *CAPS)
    with cache.init():
        model = TinyGPT(2)
    model, optimizer = cache.wrap(model, adamw(model), shard_parameters=True)
    theirs = alone(folder, TinyGPT(2), adamw)
    train_beside((cache, model, optimizer), theirs, 2)
    assert_same_parameters(cache, theirs[0])


def test_a_model_can_be_built_in_pages(two: Ranks, tmp_path: Path) -> None:
    two.run(build_inside, str(tmp_path))


# State dicts and checkpoints.


def read_and_write(folder: str) -> None:
    ours, theirs = sharded(folder, TinyGPT(2)), alone(folder, TinyGPT(2), adamw)
    train_beside(ours, theirs, 2)
    (cache, model, optimizer), (_, other, other_optimizer) = ours, theirs
    assert_same_state(model.state_dict(), other.state_dict(), assert_close)
    for to in range(dist.get_world_size()):
        optimizer.consolidate_state_dict(to=to)
        if dist.get_rank() == to:
            found = optimizer.state_dict()["state"]
            assert_same_state(found, other_optimizer.state_dict()["state"], assert_close)
        else:
            assert "consolidate_state_dict" in refused(optimizer.state_dict)[1]
    fresh = TinyGPT(2)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.add_(1)
    model.load_state_dict(fresh.state_dict())
    with torch.no_grad():
        tokens = next(batches())
        assert_close(model(tokens), fresh(tokens))
        assert torch.equal(cache.full("norm.bias", torch.full((48,), 3.0)), torch.full((48,), 3.0))
        fresh.norm.bias.fill_(3)
        assert_close(model(tokens), fresh(tokens))
        with cache.use(model.norm):
            model.norm.weight.data.mul_(2)
        fresh.norm.weight.mul_(2)
        assert_close(model(tokens), fresh(tokens))
    for name, parameter in fresh.named_parameters():
        assert_close(cache.full(name), parameter.detach())


def test_state_can_be_read_and_replaced(job: Ranks, tmp_path: Path) -> None:
    job.run(read_and_write, str(tmp_path))


def save(folder: str, saved: str, make: str) -> dict[str, Any]:
    cache, model, optimizer = sharded(folder, TinyGPT(2), MAKES[make])
    on_ranks.train(model, optimizer, 2, own_batches())
    model(next(own_batches())).backward()  # what comes ahead is in the way of nothing
    cache.save(saved, extra={"epoch": 3})
    values: dict[str, Any] = model.state_dict()
    optimizer.zero_grad()
    on_ranks.train(model, optimizer, 1, batches(5))
    return {"saved": values, "next": model.state_dict()}


def load(folder: str, saved: str, expected: dict[str, Any], make: str) -> None:
    cache, model, optimizer = sharded(folder, TinyGPT(2), MAKES[make])
    on_ranks.train(model, optimizer, 1, batches(9))
    assert cache.load(saved) == {"epoch": 3}
    assert_same_state(model.state_dict(), expected["saved"], assert_close_to_others)
    on_ranks.train(model, optimizer, 1, batches(5))
    assert_same_state(model.state_dict(), expected["next"], assert_close_to_others)


def assert_close_to_others(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", ["adamw", "adafactor"])
def test_any_number_of_ranks_loads_what_others_saved(jobs: Pool, tmp_path: Path, make: str) -> None:
    saved = str(tmp_path / "saved")
    expected = jobs.get("taco", 2).run(save, str(tmp_path), saved, make)[0]
    for backend, world in (("taco", 2), ("gloo", 3)):
        (tmp_path / backend).mkdir()
        jobs.get(backend, world).run(load, str(tmp_path / backend), saved, expected, make)
    # And a process alone.
    model = TinyGPT(2)
    cache = make_cache(tmp_path / "alone", *CAPS)
    model, optimizer = cache.wrap(model, MAKES[make](model))
    assert cache.load(saved) == {"epoch": 3}
    assert_same_state(model.state_dict(), expected["saved"], assert_close_to_others)
    on_ranks.train(model, optimizer, 1, batches(5))
    assert_same_state(model.state_dict(), expected["next"], assert_close_to_others)
    cache.close()


# Ranks that part.


class Branching(nn.Module):
    """Goes another way, or raises, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.branch = TinyGPT(2), nn.Linear(48, 48)
        self.way = "usual"
        self.model.norm.register_forward_hook(self.after)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(tokens)
        return loss

    def after(self, _: Any, __: Any, output: torch.Tensor) -> torch.Tensor | None:
        if self.way == "raises":
            raise ZeroDivisionError("in the middle")
        own: torch.Tensor = self.branch(output)
        return output + 0 * own if self.way == "usual" else output + 0 * self.branch(own)


def part(folder: str, way: str) -> tuple[str, str]:
    ours, theirs = sharded(folder, Branching()), alone(folder, Branching(), adamw)
    train_beside(ours, theirs, 2)
    cache, model, optimizer = ours
    model.way = way if dist.get_rank() == 1 else "usual"

    def step() -> None:
        model(next(own_batches())).backward()
        optimizer.step()

    found = refused(step)
    model.way = "usual"
    optimizer.zero_grad()
    train_beside(ours, theirs, 2)
    assert_same_parameters(cache, theirs[0])
    return found


def test_a_rank_that_goes_another_way_is_named_on_all(job: Ranks, tmp_path: Path) -> None:
    for kind, text in job.run(part, str(tmp_path), "another"):
        assert kind == "MismatchError"
        assert "ranks have to use the same modules in the same order" in text


def test_what_one_rank_raises_the_others_hear(job: Ranks, tmp_path: Path) -> None:
    for rank, (kind, text) in enumerate(job.run(part, str(tmp_path), "raises")):
        if rank == 1:
            assert (kind, text) == ("ZeroDivisionError", "in the middle")
        else:
            assert "rank 1: ZeroDivisionError: in the middle" in text, (kind, text)


def disagree(folder: str) -> list[tuple[str, str]]:
    (cache, model, optimizer), data = sharded(folder, TinyGPT(2)), own_batches()
    rank, found = dist.get_rank(), []
    on_ranks.train(model, optimizer, 1, data)
    before = cache.full("norm.weight")
    model(next(data)).backward()
    optimizer.param_groups[0]["lr"] = 1e-2 * (1 + rank)
    found.append(refused(optimizer.step))
    optimizer.param_groups[0]["lr"] = 1e-2
    if rank == 1:
        optimizer.param_groups[0]["amsgrad"] = True
    model(next(data)).backward()
    found.append(refused(optimizer.step))
    optimizer.param_groups[0]["amsgrad"] = False
    assert torch.equal(cache.full("norm.weight"), before)
    optimizer.zero_grad()
    on_ranks.train(model, optimizer, 1, data)
    cache.close()
    return found


def test_steps_that_differ_are_refused_on_all_ranks(job: Ranks, tmp_path: Path) -> None:
    found = job.run(disagree, str(tmp_path))
    assert found[0][0][0] == "MismatchError"
    assert "would be stepped otherwise on rank 0 than on rank 1" in found[0][0][1]
    assert found[1][1][0] == "NotImplementedError"
    assert all("amsgrad=True" in each[1][1] for each in found)


def train_until(folder: str, when: str) -> tuple[str, str]:
    import os
    import signal

    cache, model, optimizer = sharded(folder, TinyGPT(2))
    data = own_batches()
    on_ranks.train(model, optimizer, 2, data)

    def die(*_: Any) -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def go_on() -> None:
        if when == "forward":
            model.norm.register_forward_hook(die)
        loss = model(next(data))
        if when == "backward":
            model.blocks[0].register_full_backward_hook(die)
        loss.backward()
        if when == "step":
            die()
        optimizer.step()
        on_ranks.train(model, optimizer, 1, data)

    found = refused(go_on)
    cache.close()
    return found


@pytest.mark.parametrize("when", ["forward", "backward", "step"])
def test_the_others_hear_of_a_rank_that_dies(jobs: Pool, tmp_path: Path, when: str) -> None:
    job = jobs.get("taco", 3)
    outcomes = job.outcomes(train_until, str(tmp_path), when)
    for rank in (0, 2):
        kind, _ = outcomes[rank].value
        assert kind == "PeerLostError"


# Calls that are refused.


def wrap_refused(folder: str) -> list[tuple[str, str]]:
    cache = make_cache(Path(folder) / f"rank-{dist.get_rank()}", *CAPS)
    found = []

    def attempt(model: nn.Module, make: Any = adamw, **options: Any) -> None:
        given = {"shard_parameters": True, **options}
        found.append(refused(lambda: cache.wrap(model, make(model), **given)))

    attempt(DistributedDataParallel(TinyGPT(2)))
    uneven = TinyGPT(2)
    if dist.get_rank() == 1:
        uneven.norm.weight.data.add_(1)
    attempt(uneven)
    return found


def test_what_cannot_be_spread_is_refused_by_name(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(wrap_refused, str(tmp_path)):
        expected = [
            ("TypeError", "give wrap() the model without DistributedDataParallel"),
            ("MismatchError", "'norm.weight' has other values on rank 1 than on rank 0"),
        ]
        assert len(found) == len(expected)
        for (kind, text), (wanted, words) in zip(found, expected, strict=True):
            assert (kind, words in text) == (wanted, True), text


def use_otherwise(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = sharded(folder, TinyGPT(2))
    with cache.use(model.norm):
        changing = [
            refused(lambda: cache.full("norm.bias", torch.zeros(48))),
            refused(optimizer.step),
        ]
    assert all("parameters are in use" in text for _, text in changing), changing
    model(next(own_batches())).backward()
    zeroing = refused(model.zero_grad)  # which would leave them to be added to
    assert "call optimizer.zero_grad()" in zeroing[1], zeroing
    found = [
        refused(lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)),
        refused(lambda: cache.clip_grad_norm_(1.0, norm_type=0)),
        refused(lambda: model.norm.weight + 1),
    ]
    by_torch = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    assert by_torch == cache.clip_grad_norm_(math.inf)
    cache.close()
    found.append(refused(lambda: model.norm.weight + 1))
    return found


def test_what_is_not_there_is_said(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(use_otherwise, str(tmp_path)):
        assert "cache.clip_grad_norm_(max_norm)" in found[0][1]
        assert found[1] == (
            "ValueError",
            "norm_type=0.0 must be above 0, where ranks average gradients",
        )
        assert "'norm.weight'" in found[2][1]
        assert "it was spread over ranks" in found[3][1]


def test_a_process_alone_spreads_nothing(tmp_path: Path) -> None:
    ours = TinyGPT(2)
    cache = make_cache(tmp_path / "alone", *CAPS)
    ours, optimizer = cache.wrap(ours, adamw(ours), shard_parameters=True)
    theirs = TinyGPT(2)
    losses = on_ranks.train(ours, optimizer, 2, batches())
    assert losses == pytest.approx(on_ranks.train(theirs, adamw(theirs), 2, batches()), rel=1e-5)
    cache.close()
    assert ours.norm.weight.isfinite().all()
