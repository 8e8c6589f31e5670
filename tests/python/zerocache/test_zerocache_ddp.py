"""A ZeroCache on each of several ranks: all have the parameters, each keeps a part of the state."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zerocache_ranks as on_ranks
from conftest import taco_only
from spawn_ranks import Outcome, Pool, Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zerocache_models import PAGE, TinyGPT, make_cache
from zerocache_ranks import (
    CAPS,
    MAKES,
    adamw,
    alone,
    assert_same_values,
    names_of,
    own_batches,
    refused,
    shared,
    train,
    train_beside,
)

pytestmark = taco_only


def errors(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    assert all(outcome.exit_code is None for outcome in outcomes)
    return [(outcome.error_type, outcome.error) for outcome in outcomes]


def step_beside(folder: str, make: str, mixed: bool) -> None:
    def model() -> nn.Module:
        return on_ranks.mixed_model() if mixed else TinyGPT(2)

    ours, theirs = shared(folder, model(), MAKES[make]), alone(folder, model(), MAKES[make])
    train_beside(ours, theirs, 4)
    ours[0].close()
    theirs[0].close()


@pytest.mark.parametrize("make", MAKES)
def test_ranks_have_what_one_alone_would_have(job: Ranks, tmp_path: Path, make: str) -> None:
    job.run(step_beside, str(tmp_path), make, False)


@pytest.mark.parametrize("make", ["adamw", "adafactor"])
def test_bfloat16_frozen_and_tied_parameters(two: Ranks, tmp_path: Path, make: str) -> None:
    two.run(step_beside, str(tmp_path), make, True)


def step_with_options(folder: str, options: dict[str, Any]) -> None:
    ours = shared(folder, TinyGPT(2), adamw, **options)
    theirs = alone(folder, TinyGPT(2), adamw)
    train_beside(ours, theirs, 3)


@pytest.mark.parametrize(
    "options",
    [{"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_ddp(two: Ranks, tmp_path: Path, options: dict[str, Any]) -> None:
    two.run(step_with_options, str(tmp_path), options)


def clip(cache: Any, model: nn.Module) -> None:
    assert cache.clip_grad_norm_(0.1) > 0.1


def step_clipped(folder: str) -> None:
    ours, theirs = shared(folder, TinyGPT(2), adamw), alone(folder, TinyGPT(2), adamw)
    train_beside(ours, theirs, 3, clip)


def test_gradients_can_be_clipped(two: Ranks, tmp_path: Path) -> None:
    two.run(step_clipped, str(tmp_path))


def accumulate(folder: str) -> None:
    (cache, model, optimizer), data = shared(folder, TinyGPT(2), adamw), own_batches()
    other_cache, other, other_optimizer = alone(folder, TinyGPT(2), adamw)
    for _ in range(2):
        optimizer.zero_grad()
        with model.no_sync(), cache.accumulate():
            model(next(data)).backward()
            model(next(data)).backward()
        model(next(data)).backward()
        on_ranks.copy_gradients(model, other)
        optimizer.step()
        other_optimizer.step()
    assert_same_values(cache, other_cache, names_of(other))


def test_gradients_add_up_inside_no_sync(two: Ranks, tmp_path: Path) -> None:
    two.run(accumulate, str(tmp_path))


def share_of(folder: str, pages: int) -> int:
    model = DistributedDataParallel(TinyGPT(6))
    cache = make_cache(Path(folder) / f"little-{dist.get_rank()}", 8, 8, pages)
    model, optimizer = cache.wrap(model, adamw(model))
    train(model, optimizer, 2, own_batches())
    share = cache.stats()["state_bytes"]
    cache.close()
    return int(share)


def test_each_rank_keeps_its_part_of_the_state(job: Ranks, tmp_path: Path) -> None:
    """And needs room for no more: the caps are those of all parameters and that part."""
    parameters = sum(p.numel() * p.element_size() for p in TinyGPT(6).parameters())
    pages = int(parameters * (1 + 2 / job.world) / PAGE) + 1
    found = job.run(share_of, str(tmp_path), pages)
    assert sum(found) == 2 * parameters
    assert max(found) - min(found) <= 2 * PAGE
    outcomes = job.outcomes(share_of, str(tmp_path), pages // 2)
    assert all(outcome.error_type == "ValueError" for outcome in outcomes)
    assert "does not fit" in outcomes[0].error


def report_of(folder: str) -> tuple[str, dict[str, Any]]:
    cache, model, optimizer = shared(folder, TinyGPT(2), adamw)
    train(model, optimizer, 4, own_batches())
    text, stats = cache.report(), cache.stats()
    cache.close()
    return text, stats


def test_each_rank_reports_its_share_and_the_whole(two: Ranks, tmp_path: Path) -> None:
    from taco_torch.zerocache.sizes import format_bytes

    parameters = sum(p.nbytes for p in TinyGPT(2).parameters())
    found = two.run(report_of, str(tmp_path))
    for rank, (text, stats) in enumerate(found):
        assert stats["parameter_bytes"] == parameters
        assert 0 < stats["state_bytes"] < 2 * parameters
        assert text.splitlines()[0] == (
            f"rank {rank} of 2 keeps parameters {format_bytes(parameters)} of "
            f"{format_bytes(parameters)}, optimizer state {format_bytes(stats['state_bytes'])} of "
            f"{format_bytes(2 * parameters)}"
        )
        resident = stats["tiers"]["host"]["resident"]
        assert any(
            line.startswith("host ") and line.endswith(format_bytes(resident))
            for line in text.splitlines()
        )
        assert "least possible" in text
    assert sum(stats["state_bytes"] for _, stats in found) == 2 * parameters


# Calls that ranks refuse together.


def disagree(folder: str) -> list[tuple[str, str]]:
    (cache, model, optimizer), data = shared(folder, TinyGPT(2), adamw), own_batches()
    rank, found = dist.get_rank(), []
    train(model, optimizer, 1, data)
    before = cache.full("norm.weight")

    def attempt() -> None:
        found.append(refused(optimizer.step))
        assert torch.equal(cache.full("norm.weight"), before)

    model(next(data)).backward()
    optimizer.param_groups[0]["lr"] = 1e-2 * (1 + rank)
    attempt()
    optimizer.param_groups[0]["lr"] = 1e-2
    if rank == 1:
        optimizer.param_groups[0]["amsgrad"] = True
    attempt()
    optimizer.param_groups[0]["amsgrad"] = False
    kept = model.module.norm.weight.grad
    model.module.norm.weight.grad = kept if rank == 0 else None
    attempt()
    model.module.norm.weight.grad = kept.to_sparse() if rank == 1 else kept
    attempt()
    model.module.norm.weight.grad = kept
    optimizer.step()
    train(model, optimizer, 1, data)
    cache.close()
    return found


def test_steps_that_differ_are_refused_on_all_ranks(job: Ranks, tmp_path: Path) -> None:
    found = job.run(disagree, str(tmp_path))
    assert found[0][0][0] == "MismatchError"
    assert "'places' would be stepped otherwise on rank 0 than on rank 1" in found[0][0][1]
    assert "amsgrad=True" in found[0][1][1]
    assert found[1][1][0] == "NotImplementedError"
    assert "'norm.weight' has a gradient on rank 0 and none on rank 1" in found[0][2][1]
    assert "'norm.weight' has a sparse gradient" in found[0][3][1]
    assert found[0][3][1].startswith("rank 1: ")
    for attempts in found[1:]:
        for own, first in zip(attempts, found[0], strict=True):
            assert own[0]
            assert own[1].removeprefix("rank 1: ").split(": ")[-1] in first[1]


def wrap_unlike(folder: str, what: str) -> None:
    rank = dist.get_rank()
    model = TinyGPT(2)
    make = adamw
    page = PAGE
    if what == "values" and rank == 1:
        with torch.no_grad():
            model.blocks[0].out.weight[3, 5] += 1
    if what == "frozen" and rank == 1:
        model.norm.weight.requires_grad_(False)
    if what == "model" and rank == 1:
        model.norm = nn.LayerNorm(48, bias=False)
    if what == "optimizer" and rank == 1:
        make = on_ranks.sgd  # type: ignore[assignment]
    if what == "page" and rank == 1:
        page *= 2
    ssd = 2 if what == "caps" and rank == 1 else 400
    from taco_torch.zerocache import ZeroCache

    folder = f"{folder}/rank-{rank}"
    os.mkdir(folder)
    cache = ZeroCache(12 * PAGE, 12 * PAGE, f"{folder}:{ssd * PAGE}", page=page)
    try:
        cache.wrap(model, make(model), process_group=dist.group.WORLD)
    finally:
        assert all(p.isfinite().all() for p in model.parameters())
        cache.close()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("values", "'blocks.0.out.weight' has other values on rank 1 than on rank 0"),
        ("frozen", "'norm.weight' of shape (48,) (torch.float32, trained)"),
        ("model", "'norm.bias' is on rank 0 alone"),
        ("optimizer", "optimizer is 'AdamW (exp_avg, exp_avg_sq)' on rank 0 and 'SGD"),
        ("page", "page is 16384 on rank 0 and 32768 on rank 1"),
        ("caps", "does not fit into the cache"),
    ],
)
def test_ranks_that_hold_something_else_are_refused(
    two: Ranks, tmp_path: Path, what: str, text: str
) -> None:
    found = errors(two.outcomes(wrap_unlike, str(tmp_path), what))
    for rank, (kind, message) in enumerate(found):
        expected = "MismatchError"
        if what == "caps":
            expected = ("RuntimeError", "ValueError")[rank]
        assert (kind, text in message) == (expected, True), message


def wrap_refused(folder: str) -> list[tuple[str, str]]:
    from torch.nn.parallel.distributed import _MixedPrecision

    cache = make_cache(Path(folder) / f"rank-{dist.get_rank()}", *CAPS)
    found = []

    def attempt(model: nn.Module, make: Any = adamw, **options: Any) -> None:
        found.append(refused(lambda: cache.wrap(model, make(model), **options)))

    half = DistributedDataParallel(TinyGPT(2))
    half.mixed_precision = _MixedPrecision(param_dtype=torch.bfloat16)
    attempt(half)
    ignoring = TinyGPT(2)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ignoring, ["places"])
    attempt(DistributedDataParallel(ignoring))
    attempt(nn.Sequential(DistributedDataParallel(nn.Linear(4, 4))))
    attempt(TinyGPT(2), process_group="world")
    attempt(DistributedDataParallel(TinyGPT(2)), process_group=dist.new_group())
    ddp = DistributedDataParallel(TinyGPT(2))
    model, optimizer = cache.wrap(ddp, adamw(ddp))  # none of them has changed anything
    # At its end join() hands out the parameters, which are not there.
    with suppress(RuntimeError), model.join():
        model(next(own_batches())).backward()
        found.append(refused(optimizer.step))
    cache.close()
    return found


def test_what_cannot_be_shared_is_refused_by_name(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(wrap_refused, str(tmp_path)):
        expected = [
            ("NotImplementedError", "mixed_precision"),
            ("NotImplementedError", "ignores parameter 'places'"),
            ("TypeError", "'0', a part of the model, is inside DistributedDataParallel"),
            ("TypeError", "process_group='world' is no process group"),
            ("ValueError", "process_group is another than that of"),
            ("NotImplementedError", "join()"),
        ]
        assert len(found) == len(expected)
        for (kind, text), (wanted, words) in zip(found, expected, strict=True):
            assert (kind, words in text) == (wanted, True), text


# Without DistributedDataParallel, or with it afterwards.


def average_by_hand(folder: str) -> None:
    group = dist.group.WORLD
    model = TinyGPT(2)
    cache = make_cache(Path(folder) / f"shared-{dist.get_rank()}", *CAPS)
    model, optimizer = cache.wrap(model, adamw(model), process_group=group)

    def average(_: Any, model: nn.Module) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    train_beside((cache, model, optimizer), alone(folder, TinyGPT(2), adamw), 3, average)


def test_a_program_may_average_gradients_itself(job: Ranks, tmp_path: Path) -> None:
    job.run(average_by_hand, str(tmp_path))


def ddp_afterwards(folder: str) -> tuple[str, str]:
    model = TinyGPT(2)
    cache = make_cache(Path(folder) / f"shared-{dist.get_rank()}", *CAPS)
    model, optimizer = cache.wrap(model, adamw(model), process_group=dist.group.WORLD)
    found = refused(lambda: DistributedDataParallel(model))
    ddp = DistributedDataParallel(model, init_sync=False)
    train_beside((cache, ddp, optimizer), alone(folder, TinyGPT(2), adamw), 3)
    return found


def test_ddp_can_be_made_of_a_wrapped_model(two: Ranks, tmp_path: Path) -> None:
    for kind, text in two.run(ddp_afterwards, str(tmp_path)):
        assert kind
        assert "places" in text


def in_a_part_of_the_job(folder: str) -> None:
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return
    ours = shared(folder, TinyGPT(2), adamw, process_group=group)
    train_beside(ours, alone(folder, TinyGPT(2), adamw), 2)


def test_a_group_may_be_a_part_of_the_job(jobs: Pool, tmp_path: Path) -> None:
    for backend in ("gloo", "taco"):
        (tmp_path / backend).mkdir()
        jobs.get(backend, 3).run(in_a_part_of_the_job, str(tmp_path / backend))


def group_of_one(folder: str) -> None:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    own = groups[dist.get_rank()]
    ours = shared(folder, TinyGPT(2), adamw, process_group=own)
    train_beside(ours, alone(folder, TinyGPT(2), adamw), 2)
    assert len(ours[2].state_dict()["state"]) == len(list(ours[1].parameters()))
    os.makedirs(f"{folder}/other", exist_ok=True)
    early = shared(
        f"{folder}/other", TinyGPT(2), adamw, {"step_in_backward": True}, process_group=own
    )
    train(*early[1:], 2, own_batches())
    assert_same_values(ours[0], early[0], names_of(early[1]))


def test_a_group_of_one_rank_shares_nothing(two: Ranks, tmp_path: Path) -> None:
    two.run(group_of_one, str(tmp_path))


class Failing(nn.Module):
    """Raises in its forward pass, in the middle, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyGPT(2)
        self.fails = False
        self.model.norm.register_forward_hook(self.fail)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(tokens)
        return loss

    def fail(self, *_: Any) -> None:
        if self.fails:
            raise ZeroDivisionError


def fail_on_all(folder: str) -> None:
    ours, theirs = shared(folder, Failing(), adamw), alone(folder, Failing(), adamw)
    train_beside(ours, theirs, 1)
    ours[1].module.fails = True
    with pytest.raises(ZeroDivisionError):
        ours[1](next(own_batches()))
    ours[1].module.fails = False
    train_beside(ours, theirs, 2)


def test_a_cache_goes_on_after_an_exception_in_the_model(two: Ranks, tmp_path: Path) -> None:
    two.run(fail_on_all, str(tmp_path))
