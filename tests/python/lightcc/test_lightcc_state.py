"""Residuals, the gradients not sent yet, survive checkpoints and can be flushed before them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from lightcc_models import (
    ELEMENTS,
    OWN_HOSTS,
    SIZES,
    Bag,
    assert_alike,
    backward,
    chosen,
    dense_sum,
    flat,
    near,
    owed,
    passes,
    same,
)
from spawn_ranks import Ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only

WORLD = 2
lightcc = taco_torch.lightcc


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD, OWN_HOSTS) as made:
        yield made.initialise()


def compressed(**options: Any) -> DistributedDataParallel:
    model = DistributedDataParallel(Bag(), **options)
    lightcc.compress(model, "topk", ratio=0.05, threshold=0)
    return model


def delivered_by(model: DistributedDataParallel, steps: range) -> torch.Tensor:
    return torch.stack([backward(model, step) for step in steps]).sum(0)


def flushes_before_a_step() -> None:
    model = compressed()
    delivered = delivered_by(model, range(4))
    last = backward(model, 4)
    delivered += last
    lightcc.flush(model)
    grads = flat([p.grad for p in model.parameters()])
    assert_alike(grads)
    near(delivered + grads - last, dense_sum(range(5), WORLD))
    same(owed(model), torch.zeros(ELEMENTS))
    near(delivered_by(model, range(5, 8)) + owed(model), dense_sum(range(5, 8), WORLD))


def test_flush_adds_all_that_is_owed(ranks: Ranks) -> None:
    ranks.run(flushes_before_a_step)


def flushes_what_has_a_gradient() -> None:
    model = compressed()
    delivered_by(model, range(4))
    before = owed(model)
    first = next(model.parameters())
    first.grad = None
    lightcc.flush()  # the only model
    same(owed(model)[: SIZES[0]], before[: SIZES[0]])
    same(owed(model)[SIZES[0] :], torch.zeros(ELEMENTS - SIZES[0]))


def test_flush_keeps_what_belongs_to_a_parameter_without_gradient(ranks: Ranks) -> None:
    ranks.run(flushes_what_has_a_gradient)


def flushes_too_late() -> None:
    scaler = torch.amp.GradScaler("cpu")
    model = DistributedDataParallel(Bag())
    lightcc.compress(model, "topk", threshold=0, grad_scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(chosen(0, dist.get_rank()))).backward()
    lightcc.flush(model)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"before scaler\.unscale_"):
        lightcc.flush(model)


def test_flush_after_unscaling_is_refused(ranks: Ranks) -> None:
    ranks.run(flushes_too_late)


# -- checkpoints


def goes_on_exactly() -> None:
    """Unused parameters are looked for, so buckets are never arranged anew."""
    straight = compressed(find_unused_parameters=True)
    list(passes(straight, 4))
    state = lightcc.state_dict(straight)
    expected = list(passes(straight, 4, first=4))
    resumed = compressed(find_unused_parameters=True)
    lightcc.load_state_dict(state, resumed)
    for gradients, wanted in zip(passes(resumed, 4, first=4), expected, strict=True):
        same(gradients, wanted)


def test_a_resumed_job_goes_on_bit_by_bit(ranks: Ranks) -> None:
    ranks.run(goes_on_exactly)


def rolls_back() -> None:
    """A model that goes on from an earlier state of itself."""
    model = compressed()
    list(passes(model, 4))
    state = lightcc.state_dict(model)
    expected = list(passes(model, 3, first=4))
    lightcc.load_state_dict(state, model)
    for gradients, wanted in zip(passes(model, 3, first=4), expected, strict=True):
        same(gradients, wanted)


def test_a_model_goes_back_to_its_earlier_state(ranks: Ranks) -> None:
    ranks.run(rolls_back)


def saves(folder: str, only_rank_0: bool) -> torch.Tensor:
    model = compressed()
    delivered = delivered_by(model, range(5))
    state = lightcc.state_dict(model)
    assert set(state["residuals"]) == {f"weights.{i}" for i in range(len(SIZES))}
    assert int(state["step"]) == 5
    rank = dist.get_rank()
    if rank == 0 or not only_rank_0:
        torch.save(state, Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    return delivered


def resumes(folder: str, of_rank_0: bool, delivered: torch.Tensor) -> None:
    """With DDP's buckets as they are before the first step."""
    rank = 0 if of_rank_0 else dist.get_rank() % WORLD
    state = torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True)
    model = compressed()
    lightcc.load_state_dict(state, model)
    near(owed(model), dense_sum(range(5), WORLD) - delivered)
    total = delivered + delivered_by(model, range(5, 9))
    near(
        total + owed(model),
        dense_sum(range(5), WORLD) + dense_sum(range(5, 9), dist.get_world_size()),
    )


@pytest.mark.parametrize("only_rank_0", [False, True])
def test_a_new_job_loses_nothing(ranks: Ranks, tmp_path: Path, only_rank_0: bool) -> None:
    delivered = ranks.run(saves, str(tmp_path), only_rank_0)[0]
    ranks.run(resumes, str(tmp_path), only_rank_0, delivered)


def test_a_larger_world_loses_nothing(ranks: Ranks, tmp_path: Path) -> None:
    delivered = ranks.run(saves, str(tmp_path), False)[0]
    with Ranks(3, OWN_HOSTS) as three:
        three.initialise().run(resumes, str(tmp_path), False, delivered)


def by_checkpoint(folder: str) -> None:
    import torch.distributed.checkpoint as dcp

    model = compressed()
    delivered = delivered_by(model, range(5))
    dcp.save({"lightcc": lightcc.state_dict(model)}, checkpoint_id=folder)
    fresh = compressed()
    state = {"lightcc": lightcc.state_dict(fresh)}
    dcp.load(state, checkpoint_id=folder)
    lightcc.load_state_dict(state["lightcc"], fresh)
    near(owed(fresh) + delivered, dense_sum(range(5), WORLD))


def test_torch_distributed_checkpoint_saves_and_loads_it(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(by_checkpoint, str(tmp_path))


def scales() -> None:
    """The state does not depend on the loss scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaled = DistributedDataParallel(Bag())
    lightcc.compress(scaled, "topk", ratio=0.05, threshold=0, grad_scaler=scaler)
    plain = compressed()
    for step in range(5):
        scaled.zero_grad()
        scaler.scale(scaled(chosen(step, dist.get_rank()))).backward()
        backward(plain, step)
    near(owed(scaled), owed(plain))


def test_what_is_saved_is_unscaled(ranks: Ranks) -> None:
    ranks.run(scales)


def loads_what_is_not_its_own() -> None:
    model = compressed()
    list(passes(model, 4))
    before = owed(model)
    other = DistributedDataParallel(nn.Linear(3, 2))
    lightcc.compress(other, "topk", threshold=0)
    with pytest.raises(ValueError, match=r"another model: weights\.0 is only in the model; "):
        lightcc.load_state_dict(lightcc.state_dict(other), model)
    state = lightcc.state_dict(model)
    state["residuals"]["weights.1"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"weights\.1 has shape \(50,\) in the model, \(3,\)"):
        lightcc.load_state_dict(state, model)
    same(owed(model), before)
    with pytest.raises(ValueError, match="of 2 models are compressed"):
        lightcc.state_dict()


def loads_what_is_no_state() -> None:
    model = compressed()
    list(passes(model, 4))
    before, state = owed(model), lightcc.state_dict(model)
    for wrong in (None, {}, model.state_dict(), {"lightcc": state}, {**state, "residuals": None}):
        with pytest.raises(ValueError, match=r"this is no state of lightcc\.state_dict\(\): "):
            lightcc.load_state_dict(wrong, model)  # type: ignore[arg-type]
    residuals = dict.fromkeys(state["residuals"], "lost")
    with pytest.raises(ValueError, match=r"the residual of weights\.0 is a str, not a tensor"):
        lightcc.load_state_dict({**state, "residuals": residuals}, model)
    same(owed(model), before)


def test_what_is_no_state_at_all_is_refused(ranks: Ranks) -> None:
    ranks.run(loads_what_is_no_state)


def test_the_state_of_another_model_is_refused_and_says_where_it_differs(ranks: Ranks) -> None:
    ranks.run(loads_what_is_not_its_own)
