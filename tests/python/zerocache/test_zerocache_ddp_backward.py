"""Ranks that share an optimizer's state, and step pages in the backward pass: the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zerocache_ranks as on_ranks
from conftest import taco_only
from marks import whole
from spawn_ranks import Pool, Ranks, wait_for_all
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from zerocache_growth import GRADIENT_BYTES, gradient_growth
from zerocache_models import TinyGPT, make_cache
from zerocache_ranks import (
    CAPS,
    MAKES,
    adamw,
    fail_to_take,
    own_batches,
    refused,
    shared,
    state_of,
    values_of,
)
from zerocache_steps import check_same

pytestmark = taco_only

# Several buckets, and pages that wait for gradients of two of them.
OPTIONS = {"bucket_cap_mb": 0.05}
KEPT = {"step_in_backward": True, "clipping": True}
Step = Callable[[Any, Any, Any, Iterator[Tensor]], None]


def wrapped(
    folder: str, model: nn.Module, make: Any = adamw, wrap: Any = None, **options: Any
) -> tuple[Any, Any, Any]:
    return shared(folder, model, make, wrap, **OPTIONS, **options)


def usual_step(_: Any, model: Any, optimizer: Any, data: Iterator[Tensor]) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    optimizer.step()


def clipped_step(cache: Any, model: Any, optimizer: Any, data: Iterator[Tensor]) -> None:
    optimizer.zero_grad()
    model(next(data)).backward()
    assert cache.clip_grad_norm_(0.1) > 0.1
    optimizer.step()


def accumulated(cache: Any, model: Any, optimizer: Any, data: Iterator[Tensor]) -> None:
    optimizer.zero_grad()
    with model.no_sync(), cache.accumulate():
        model(next(data)).backward()
    with model.no_sync():
        model(next(data)).backward()
        assert model.module.norm.weight.grad is not None
    model(next(data)).backward()
    optimizer.step()


def compare(
    folder: str,
    model: Callable[[], nn.Module],
    make: str = "adamw",
    step: Step = usual_step,
    early: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Trains with steps at the end and in backward passes, and expects the same bits."""
    found = []
    for name, wrap in (("usual", {}), ("early", early or {"step_in_backward": True})):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        cache, made, optimizer = wrapped(f"{folder}/{name}", model(), MAKES[make], wrap, **options)
        data = own_batches()
        for _ in range(4):
            step(cache, made, optimizer, data)
            # The contents of buckets are gone.
            assert not wrap or all(p.grad is None for p in cache._optimizer._trained)
        assert set(optimizer.numbers().values()) == {4}
        found.append({**values_of(cache), **state_of(optimizer)})
        cache.close()
    check_same(*found)


def compare_gpt(folder: str, make: str) -> None:
    compare(folder, lambda: TinyGPT(2), make)


def compare_clipped(folder: str, make: str) -> None:
    compare(folder, lambda: TinyGPT(2), make, clipped_step, KEPT)


WORLDS = ["gloo-2", whole("gloo-4"), "taco-2", "taco-4"]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("job", WORLDS, indirect=True)
def test_the_bits_are_those_of_steps_at_the_end(job: Ranks, tmp_path: Path, make: str) -> None:
    job.run(compare_gpt, str(tmp_path), make)


@pytest.mark.parametrize("make", ["adamw", "adafactor"])
@pytest.mark.parametrize("job", WORLDS[1:3], indirect=True)
def test_clipped_steps_have_the_bits_of_torch(job: Ranks, tmp_path: Path, make: str) -> None:
    job.run(compare_clipped, str(tmp_path), make)


def compare_mixed(folder: str, make: str) -> None:
    compare(folder, on_ranks.mixed_model, make)


@pytest.mark.parametrize("make", ["adamw", "adafactor"])
def test_bfloat16_frozen_and_tied_parameters(jobs: Pool, tmp_path: Path, make: str) -> None:
    jobs.get("taco", 4).run(compare_mixed, str(tmp_path), make)


def compare_views(folder: str) -> None:
    compare(folder, lambda: TinyGPT(2), gradient_as_bucket_view=True)


def test_gradients_that_are_views_of_buckets(two: Ranks, tmp_path: Path) -> None:
    two.run(compare_views, str(tmp_path))


def compare_accumulated(folder: str, early: dict[str, Any]) -> None:
    compare(folder, lambda: TinyGPT(2), step=accumulated, early=early)


@pytest.mark.parametrize("early", [{"step_in_backward": True}, KEPT], ids=["stepped", "kept"])
def test_gradients_that_accumulate(two: Ranks, tmp_path: Path, early: dict[str, Any]) -> None:
    two.run(compare_accumulated, str(tmp_path), early)


def accumulate_alone(folder: str) -> None:
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    data = own_batches()
    before = cache.full("norm.weight")
    with cache.accumulate():
        model(next(data)).backward()
    assert model.module.norm.weight.grad is not None
    assert torch.equal(cache.full("norm.weight"), before)
    model(next(data)).backward()
    optimizer.step()
    assert not torch.equal(cache.full("norm.weight"), before)
    cache.close()


def test_accumulate_has_ddp_wait_as_well(two: Ranks, tmp_path: Path) -> None:
    two.run(accumulate_alone, str(tmp_path))


def three_and_a_third(folder: str) -> None:
    """A mean over three ranks is not exact: it is rounded where DistributedDataParallel does."""
    compare(folder, lambda: TinyGPT(2))


def test_means_are_rounded_as_without(jobs: Pool, tmp_path: Path) -> None:
    jobs.get("taco", 3).run(three_and_a_third, str(tmp_path))


def step_in_pieces(folder: str) -> None:
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    data = own_batches()
    usual_step(cache, model, optimizer, data)
    names = list(cache._names.values())
    before = {name: cache.full(name) for name in names}
    model(next(data)).backward()
    assert all(p.grad is None for p in model.parameters())
    stepped = {name: cache.full(name) for name in names}
    assert not any(torch.equal(before[name], stepped[name]) for name in names)
    with pytest.raises(RuntimeError, match="not at its end"):
        optimizer.consolidate_state_dict()
    optimizer.step()
    check_same(stepped, {name: cache.full(name) for name in names})
    # And what is dropped has been stepped.
    model(next(data)).backward()
    optimizer.zero_grad()
    assert set(optimizer.numbers().values()) == {3}
    assert not torch.equal(cache.full("norm.weight"), stepped["norm.weight"])
    usual_step(cache, model, optimizer, data)
    cache.close()


def test_all_is_stepped_when_backward_returns(two: Ranks, tmp_path: Path) -> None:
    two.run(step_in_pieces, str(tmp_path))


def second_pass(folder: str) -> None:
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    data = own_batches()
    model(next(data)).backward()
    with pytest.raises(RuntimeError, match="has been stepped in an earlier backward pass"):
        model(next(data)).backward()
    with pytest.raises(RuntimeError, match="clipping=True"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(RuntimeError, match="clipping=True"):
        cache.clip_grad_norm_(1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="GradScaler cannot be used"):
        scaler.step(optimizer)
    optimizer.zero_grad()  # what the second pass has left
    assert set(optimizer.numbers().values()) == {1}
    usual_step(cache, model, optimizer, data)
    cache.close()


def test_what_comes_too_late_is_refused_as_on_one_rank(two: Ranks, tmp_path: Path) -> None:
    two.run(second_pass, str(tmp_path))


def closed_in_between(folder: str) -> None:
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    data = own_batches()
    usual_step(cache, model, optimizer, data)
    cache.close()
    for options in ({}, {"gradient_as_bucket_view": True}):
        other = DistributedDataParallel(TinyGPT(2), **OPTIONS, **options)
        other.load_state_dict(model.state_dict())
        tokens = next(data)
        model.zero_grad()
        model(tokens).backward()
        other(tokens).backward()
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(one.grad, two.grad)


def test_a_closed_cache_leaves_means_as_ddp_does(two: Ranks, tmp_path: Path) -> None:
    two.run(closed_in_between, str(tmp_path))


# Failures.


def disagree(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    data, found = own_batches(), []
    usual_step(cache, model, optimizer, data)
    before = cache.full("norm.weight")

    def attempt() -> None:
        found.append(refused(lambda: model(next(data)).backward()))
        assert torch.equal(cache.full("norm.weight"), before)
        optimizer.zero_grad()

    optimizer.param_groups[0]["lr"] = 1e-2 * (1 + dist.get_rank())
    attempt()
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.param_groups[0]["amsgrad"] = dist.get_rank() == 1
    attempt()
    optimizer.param_groups[0]["amsgrad"] = False
    usual_step(cache, model, optimizer, data)
    assert not torch.equal(cache.full("norm.weight"), before)
    cache.close()
    return found


@pytest.mark.parametrize("job", ["gloo-2", "taco-4"], indirect=True)
def test_steps_that_differ_are_refused_before_the_first(job: Ranks, tmp_path: Path) -> None:
    for rank, found in enumerate(job.run(disagree, str(tmp_path))):
        assert found[0][0] == "MismatchError"
        assert "would be stepped otherwise on rank 0 than on rank 1" in found[0][1]
        assert "amsgrad=True" in found[1][1]
        assert rank == 1 or found[1][1].startswith("rank 1: ")


def fail_alone(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    data = own_batches()
    usual_step(cache, model, optimizer, data)
    cache.save(f"{folder}/checkpoint")
    before = values_of(cache)
    if dist.get_rank() == 1:
        fail_to_take(optimizer, 3)
    found = [refused(lambda: model(next(data)).backward())]
    found.append(refused(lambda: model(next(data))))
    cache.load(f"{folder}/checkpoint")
    check_same(before, values_of(cache))
    optimizer.zero_grad()
    usual_step(cache, model, optimizer, data)
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


def fail_in_a_hook(folder: str) -> None:
    """On all ranks at once, after some buckets: what they had averaged is stepped, and no more."""
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    data = own_batches()
    usual_step(cache, model, optimizer, data)
    before = values_of(cache)

    def fail(_: Any) -> None:
        raise OSError("no more of these")

    hook = model.module.blocks[0].out.weight.register_hook(fail)
    assert refused(lambda: model(next(data)).backward()) == ("OSError", "no more of these")
    hook.remove()
    optimizer.zero_grad()
    after = values_of(cache)
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert "norm.weight" in changed
    assert "blocks.0.first.weight" not in changed
    for value in after.values():
        mean = value.clone()
        dist.all_reduce(mean)
        assert torch.equal(mean, value * dist.get_world_size()), "ranks differ"
    cache.close()


@pytest.mark.parametrize("job", ["gloo-2", "taco-2"], indirect=True)
def test_an_exception_on_all_ranks_leaves_what_was_averaged(job: Ranks, tmp_path: Path) -> None:
    job.run(fail_in_a_hook, str(tmp_path))


def die(folder: str) -> tuple[str, str]:
    cache, model, _ = wrapped(folder, TinyGPT(2), wrap={"step_in_backward": True})
    wait_for_all("death")
    if dist.get_rank() == 1:
        model.module.blocks[0].out.weight.register_hook(
            lambda _: os.kill(os.getpid(), signal.SIGKILL)
        )
    found = refused(lambda: model(next(own_batches())).backward())
    cache.close()
    return found


def test_a_rank_that_dies_in_the_middle_is_named_and_the_cache_closes(
    jobs: Pool, tmp_path: Path
) -> None:
    outcomes = jobs.get("taco", 2).outcomes(die, str(tmp_path))
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert outcomes[0].value[0] == "PeerLostError"


def refusals(folder: str) -> list[tuple[str, str]]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    cache = make_cache(Path(folder) / f"rank-{dist.get_rank()}", *CAPS)
    found = []
    for options in ({"find_unused_parameters": True}, {"static_graph": True}, {}):
        model = DistributedDataParallel(TinyGPT(2), **options)
        if not options:
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        wrap = partial(cache.wrap, model, adamw(model), step_in_backward=True)
        found.append(refused(wrap))
    model = DistributedDataParallel(TinyGPT(2))
    cache.wrap(model, adamw(model))  # none of them has changed anything
    cache.close()
    return found


def test_options_whose_means_come_late_are_refused_by_name(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(refusals, str(tmp_path)):
        for (kind, text), words in zip(
            found,
            ("find_unused_parameters=True", "static_graph=True", "a communication hook"),
            strict=True,
        ):
            assert (kind, words in text) == ("NotImplementedError", True), text
            assert "leave step_in_backward=False" in text


# Memory.


def sent_at_the_end(folder: str) -> tuple[int, int]:
    """Bytes that this rank sends once the pass is over, and those of all parameters."""
    import taco_torch

    cache, model, optimizer = wrapped(folder, TinyGPT(4), wrap={"step_in_backward": True})
    data, ends, sent = own_batches(), optimizer.end_pass, []

    def end_pass(*failure: Any) -> None:
        before = taco_torch.stats().shm_bytes
        ends(*failure)
        sent.append(taco_torch.stats().shm_bytes - before)

    optimizer.end_pass = end_pass
    for _ in range(3):
        usual_step(cache, model, optimizer, data)
    found = sent[-1], cache.store.parameter_bytes
    cache.close()
    return found


def test_pages_travel_while_the_pass_goes_on(two: Ranks, tmp_path: Path) -> None:
    for sent, parameters in two.run(sent_at_the_end, str(tmp_path)):
        assert 0 < sent < parameters // 4  # all that a rank steps would be half


def take_where(folder: str, wrap: dict[str, Any]) -> None:
    cache, model, optimizer = wrapped(folder, TinyGPT(2), wrap=wrap)
    take, views = optimizer.take_gradient, []

    def note(parameter: nn.Parameter, more: bool = False) -> None:
        assert parameter.grad is not None
        views.append(parameter.grad.untyped_storage().nbytes() > parameter.grad.nbytes)
        take(parameter, more)

    optimizer.take_gradient = note
    usual_step(cache, model, optimizer, own_batches())
    assert len(views) == len(cache._optimizer._trained)
    assert sum(views) > len(views) * 3 // 4  # a bucket may have a single one
    cache.close()


@pytest.mark.parametrize("wrap", [{"step_in_backward": True}, KEPT], ids=["stepped", "kept"])
def test_means_are_used_where_they_lie(two: Ranks, tmp_path: Path, wrap: dict[str, Any]) -> None:
    two.run(take_where, str(tmp_path), wrap)


def growth(folder: str, early: bool) -> int:
    return gradient_growth(
        folder,
        lambda cache, model: cache.wrap(
            ddp := DistributedDataParallel(model, bucket_cap_mb=2),
            on_ranks.plain_sgd(ddp),
            step_in_backward=early,
        ),
    )


def test_gradients_never_are_in_memory_together(two: Ranks, tmp_path: Path) -> None:
    assert min(two.run(growth, str(tmp_path / "usual"), False)) > GRADIENT_BYTES * 3 // 4
    assert max(two.run(growth, str(tmp_path / "early"), True)) < GRADIENT_BYTES // 2
