"""Ranks whose gradients the cache averages in the backward pass, and that share the state: the bits
of a program that averages them itself, and steps at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import zerocache_ranks as on_ranks
from conftest import taco_only
from marks import whole
from spawn_ranks import Pool, Ranks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zerocache_growth import GRADIENT_BYTES, gradient_growth
from zerocache_models import TinyGPT, make_cache
from zerocache_ranks import (
    CAPS,
    MAKES,
    adamw,
    fail_to_take,
    own_batches,
    refused,
    state_of,
    values_of,
)
from zerocache_steps import check_same

pytestmark = taco_only

EARLY = {"step_in_backward": True}
KEPT = {"step_in_backward": True, "clipping": True}
WORLDS = ["gloo-2", whole("gloo-4"), "taco-2", "taco-4"]
# A training step: cache, model, optimizer, data, and what averages gradients before the step.
Step = Callable[[Any, Any, Any, Iterator[Tensor], Callable[[nn.Module], None]], None]


def grouped(
    folder: str, model: nn.Module, make: Any = adamw, **options: Any
) -> tuple[Any, Any, Any]:
    own = Path(folder, f"rank-{dist.get_rank()}")
    own.mkdir(parents=True)
    cache = make_cache(own / "cache", *CAPS)
    return cache, *cache.wrap(model, make(model), process_group=dist.group.WORLD, **options)


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def usual_step(_: Any, model: Any, optimizer: Any, data: Iterator[Tensor], means: Any) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    means(model)
    optimizer.step()


def clipped_step(
    cache: Any, model: Any, optimizer: Any, data: Iterator[Tensor], means: Any
) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    means(model)
    assert cache.clip_grad_norm_(0.1) > 0.1
    optimizer.step()


def accumulated(cache: Any, model: Any, optimizer: Any, data: Iterator[Tensor], means: Any) -> None:
    optimizer.zero_grad()
    with cache.accumulate():
        model(next(data)).backward()
        assert model.norm.weight.grad is not None
    model(next(data)).backward()
    means(model)
    optimizer.step()


def compare(
    folder: str,
    model: Callable[[], nn.Module],
    make: str = "adamw",
    step: Step = usual_step,
    early: dict[str, Any] = EARLY,
) -> None:
    """Trains with steps at the end and in backward passes, and expects the same bits."""
    found = []
    for options in ({}, early):
        cache, made, optimizer = grouped(f"{folder}/{len(found)}", model(), MAKES[make], **options)
        data = own_batches()
        for _ in range(4):
            step(cache, made, optimizer, data, (lambda _: None) if options else average)
            assert not options or all(p.grad is None for p in made.parameters())
        found.append({**values_of(cache), **state_of(optimizer)})
        cache.close()
    check_same(*found)


def compare_gpt(folder: str, make: str, step: str, early: dict[str, Any]) -> None:
    compare(folder, lambda: TinyGPT(2), make, globals()[step], early)


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("job", WORLDS, indirect=True)
def test_the_bits_are_those_of_steps_at_the_end(job: Ranks, tmp_path: Path, make: str) -> None:
    job.run(compare_gpt, str(tmp_path), make, "usual_step", EARLY)


@pytest.mark.parametrize("job", WORLDS[1:3], indirect=True)
def test_clipped_steps_have_the_bits_of_torch(job: Ranks, tmp_path: Path) -> None:
    job.run(compare_gpt, str(tmp_path), "adamw", "clipped_step", KEPT)


@pytest.mark.parametrize("early", [EARLY, KEPT], ids=["stepped", "kept"])
def test_gradients_that_accumulate(two: Ranks, tmp_path: Path, early: dict[str, Any]) -> None:
    two.run(compare_gpt, str(tmp_path), "adamw", "accumulated", early)


def compare_mixed(folder: str) -> None:
    compare(folder, on_ranks.mixed_model)


def test_bfloat16_frozen_and_tied_parameters(jobs: Pool, tmp_path: Path) -> None:
    jobs.get("taco", 4).run(compare_mixed, str(tmp_path))


class Reentrant(TinyGPT):
    """Gradients of its blocks wait for the end of the pass; one of its layers has none."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(-1, 1).flatten())


def compare_reentrant(folder: str) -> None:
    compare(folder, lambda: Reentrant(2))


def test_gradients_of_passes_inside_and_parameters_without(two: Ranks, tmp_path: Path) -> None:
    two.run(compare_reentrant, str(tmp_path))


def left_over(folder: str) -> None:
    """A parameter whose gradient comes from a pass inside accumulate() alone."""

    def step(cache: Any, model: Any, optimizer: Any, data: Iterator[Tensor], means: Any) -> None:
        optimizer.zero_grad()
        with cache.accumulate():
            model(next(data)).backward()
        means(model)
        optimizer.step()

    compare(folder, lambda: TinyGPT(2), step=step)


def test_what_passes_leave_is_averaged_at_the_step(two: Ranks, tmp_path: Path) -> None:
    two.run(left_over, str(tmp_path))


# Failures.


class Parting(TinyGPT):
    """Leaves its last block out where it is told to."""

    short = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places
        for block in list(self.blocks)[: -1 if self.short else None]:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.roll(-1, 1).flatten())


def part(folder: str) -> tuple[tuple[str, str], dict[str, Tensor]]:
    cache, model, optimizer = grouped(folder, Parting(2), **EARLY)
    data = own_batches()
    model.short = dist.get_rank() == 1
    found = refused(lambda: model(next(data)).backward())
    optimizer.zero_grad()
    model.short = False
    usual_step(cache, model, optimizer, data, lambda _: None)
    values = values_of(cache)
    cache.close()
    return found, values


@pytest.mark.parametrize("job", ["gloo-2", "taco-4"], indirect=True)
def test_ranks_that_part_are_told_and_stay_alike(job: Ranks, tmp_path: Path) -> None:
    found = job.run(part, str(tmp_path))
    for (kind, text), values in found:
        assert kind == "MismatchError"
        assert "rank 0 has that of 'blocks.1" in text
        assert "rank 1 has that of 'blocks.0" in text
        check_same(values, found[0][1])


def disagree(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = grouped(folder, TinyGPT(2), **EARLY)
    data, found = own_batches(), []
    before = cache.full("norm.weight")
    optimizer.param_groups[0]["lr"] = 1e-2 * (1 + dist.get_rank())
    found.append(refused(lambda: model(next(data)).backward()))
    optimizer.zero_grad()
    optimizer.param_groups[0]["lr"] = 1e-2
    assert torch.equal(cache.full("norm.weight"), before)
    model(next(data)).backward()
    found.append(refused(lambda: model(next(data)).backward()))
    optimizer.zero_grad()  # what the second pass has left
    usual_step(cache, model, optimizer, data, lambda _: None)
    cache.close()
    return found


@pytest.mark.parametrize("job", ["gloo-2", "taco-4"], indirect=True)
def test_steps_that_differ_are_refused_before_the_first(job: Ranks, tmp_path: Path) -> None:
    for first, second in job.run(disagree, str(tmp_path)):
        assert first[0] == "MismatchError"
        assert "would be stepped otherwise on rank 0 than on rank 1" in first[1]
        assert "has been stepped in an earlier backward pass" in second[1]


def fail_alone(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = grouped(folder, TinyGPT(2), **EARLY)
    data = own_batches()
    usual_step(cache, model, optimizer, data, lambda _: None)
    cache.save(f"{folder}/checkpoint")
    if dist.get_rank() == 1:
        fail_to_take(optimizer, 3)
    found = [refused(lambda: model(next(data)).backward()), refused(lambda: model(next(data)))]
    cache.load(f"{folder}/checkpoint")
    optimizer.zero_grad()
    usual_step(cache, model, optimizer, data, lambda _: None)
    cache.close()
    return found


@pytest.mark.parametrize("job", ["gloo-2", "taco-4"], indirect=True)
def test_what_fails_on_one_rank_fails_on_all_until_a_load(job: Ranks, tmp_path: Path) -> None:
    for rank, (first, then) in enumerate(job.run(fail_alone, str(tmp_path))):
        if rank == 1:
            assert first == ("OSError", "no more of these")
        else:
            assert "rank 1: OSError: no more of these" in first[1]
        assert "load a checkpoint to go on" in then[1]


# Memory.


def growth(folder: str, early: bool) -> int:
    return gradient_growth(
        folder,
        lambda cache, model: cache.wrap(
            model,
            on_ranks.plain_sgd(model),
            process_group=dist.group.WORLD,
            step_in_backward=early,
        ),
    )


def test_gradients_never_are_in_memory_together(two: Ranks, tmp_path: Path) -> None:
    assert min(two.run(growth, str(tmp_path / "usual"), False)) > GRADIENT_BYTES * 3 // 4
    assert max(two.run(growth, str(tmp_path / "early"), True)) < GRADIENT_BYTES // 2
