"""torch's GradScaler over gradients that a cache keeps on pages, or that ranks average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zerocache_ranks as on_ranks
from conftest import taco_only
from spawn_ranks import Ranks
from torch import Tensor, nn
from zerocache_models import TinyGPT, adamw, make_cache
from zerocache_ranks import alone, own_batches, refused, shared, state_of, values_of
from zerocache_spread import average, sharded
from zerocache_steps import Step, check_same, everything, tokens, trained

pytestmark = taco_only

INF = float("inf")
SKIPPED = 2  # the step whose loss is infinite


def make_scaler(scale: float = 1024.0) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


# Gradients on pages, of one process.


def scaled(norms: list[float], scales: list[float], scale: float, unscales: bool = True) -> Step:
    """A step of a scaled loss, which is infinite once; clipped if it ``unscales`` before."""
    scaler = make_scaler(scale)

    def step(model: nn.Module, optimizer: Any, cache: Any, number: int) -> None:
        loss = model(tokens(number))
        scaler.scale(loss * INF if number == SKIPPED else loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
            norms.append(cache.clip_grad_norm_(0.5).item())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("unscales", [True, False])
@pytest.mark.parametrize("host", [5, 400])
def test_the_bits_are_those_of_gradients_in_memory(
    tmp_path: Path, host: int, unscales: bool
) -> None:
    found = []
    for name, options in (
        ("usual", {"host": 12}),
        ("kept", {"host": host, "step_in_backward": True, "clipping": True}),
    ):
        norms: list[float] = []
        scales: list[float] = []
        step = scaled(norms, scales, 1024.0, unscales)
        values = trained(tmp_path / name, TinyGPT, step, 6, **options)
        found.append((values, norms, scales))
    (usual, norms, scales), (kept, own_norms, own_scales) = found
    check_same(usual, kept)
    assert own_scales == scales == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0, 2048.0]
    for number, (norm, own) in enumerate(zip(norms, own_norms, strict=True)):
        assert own == norm > 0.5 or number == SKIPPED


def test_a_scale_that_is_no_power_of_two(tmp_path: Path) -> None:
    found = []
    for name, options in (("usual", {}), ("kept", {"step_in_backward": True, "clipping": True})):
        norms: list[float] = []
        step = scaled(norms, [], 1000.0)
        found.append((trained(tmp_path / name, TinyGPT, step, 2, **options), norms))
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-6)
    for name, value in found[0][0].items():
        torch.testing.assert_close(found[1][0][name], value, msg=name)


def test_squares_that_overflow_are_no_reason_to_skip(tmp_path: Path) -> None:
    """The norm of each gradient is infinite then, and the gradient is not."""
    found = []
    for name, options in (("usual", {}), ("kept", {"step_in_backward": True, "clipping": True})):
        norms: list[float] = []
        step = scaled(norms, [], 2.0**80)
        found.append((trained(tmp_path / name, TinyGPT, step, 2, **options), norms))
    check_same(*(values for values, _ in found))
    assert found[0][1] == found[1][1]
    assert found[0][1][0] < INF


def test_a_skipped_step_changes_nothing(tmp_path: Path) -> None:
    model = TinyGPT(2)
    with make_cache(tmp_path) as cache:
        _, optimizer = cache.wrap(model, adamw(model), step_in_backward=True, clipping=True)
        scaler = make_scaler()
        scaler.scale(model(tokens(0))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        before, numbers = everything(cache, optimizer), optimizer.numbers()
        scaler.scale(model(tokens(1)) * INF).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 512.0
        optimizer.zero_grad()
        check_same(everything(cache, optimizer), before)
        assert optimizer.numbers() == numbers
        with pytest.raises(AssertionError, match="No inf checks"):  # as torch's: no gradients
            scaler.step(optimizer)


# Gradients that ranks average.


def scaled_loss(scaler: Any, model: Any, data: Tensor, number: int) -> Tensor:
    """Infinite on one rank, in one step."""
    loss = model(data)
    infinite = number == SKIPPED and dist.get_rank() == 1
    result: Tensor = scaler.scale(loss * INF if infinite else loss)
    return result


def clip_both(ours: Any, theirs: Any, skipped: bool) -> None:
    (cache, scaler, optimizer), (other, other_scaler, other_optimizer) = ours, theirs
    scaler.unscale_(optimizer)
    other_scaler.unscale_(other_optimizer)
    norm = cache.clip_grad_norm_(0.1)
    other_norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1)
    if not skipped:
        assert norm > 0.1
        torch.testing.assert_close(norm, other_norm, rtol=1e-5, atol=0)


def scale_beside(folder: str, clips: bool) -> list[float]:
    """Ours, and a cache of each rank's own, whose gradients are averaged by hand."""
    (cache, model, optimizer), scaler = sharded(folder, TinyGPT(2)), make_scaler()
    other_cache, other, other_optimizer = alone(folder, TinyGPT(2), adamw)
    other_scaler, data, scales = make_scaler(), own_batches(), []
    for number in range(5):
        batch, skipped = next(data), number == SKIPPED
        optimizer.zero_grad()
        other_optimizer.zero_grad()
        scaled_loss(scaler, model, batch, number).backward()
        scaled_loss(other_scaler, other, batch, number).backward()
        average(other)
        if clips:
            clip_both((cache, scaler, optimizer), (other, other_scaler, other_optimizer), skipped)
        before = (values_of(cache), state_of(optimizer)) if skipped else ({}, {})
        scaler.step(optimizer)
        other_scaler.step(other_optimizer)
        if skipped:
            check_same(values_of(cache), before[0])
            check_same(state_of(optimizer), before[1])
        scaler.update()
        other_scaler.update()
        assert scaler.get_scale() == other_scaler.get_scale()
        scales.append(scaler.get_scale())
    assert set(optimizer.numbers().values()) == {4}
    # Two addends are added alike, whoever does it; norms are not.
    exact = dist.get_world_size() == 2 and not clips
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 2e-3, "atol": 2e-4}
    for name, value in values_of(cache).items():
        torch.testing.assert_close(value, other_cache.full(name), msg=name, **tolerance)
    cache.close()
    other_cache.close()
    return scales


@pytest.mark.parametrize("clips", [True, False])
def test_ranks_step_and_skip_together(job: Ranks, tmp_path: Path, clips: bool) -> None:
    for scales in job.run(scale_beside, str(tmp_path), clips):
        assert scales == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0]


def scale_apart(folder: str) -> list[tuple[str, str]]:
    cache, model, optimizer = sharded(folder, TinyGPT(2))
    data, found = own_batches(), []
    scaler = make_scaler(1024.0 if dist.get_rank() == 0 else 512.0)
    scaler.scale(model(next(data))).backward()
    before = values_of(cache)
    found.append(refused(lambda: scaler.step(optimizer)))
    optimizer.zero_grad()
    check_same(values_of(cache), before)
    # One rank has gradients and the other has none.
    same = make_scaler()
    loss = same.scale(model(next(data)))
    found.append(refused(loss.backward if dist.get_rank() == 0 else lambda: same.step(optimizer)))
    optimizer.zero_grad()
    same.scale(model(next(data))).backward()
    same.step(optimizer)
    assert set(optimizer.numbers().values()) == {1}
    found.append(refused(lambda: make_scaler().unscale_(optimizer)))  # it has scaled nothing
    cache.close()
    return found


def test_ranks_that_scale_otherwise_are_told(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(scale_apart, str(tmp_path)):
        assert found[0][0] == found[1][0] == "MismatchError", found
        assert "multiply gradients by 0.0009765625" in found[0][1]
        assert "multiply gradients by" in found[1][1]
        assert found[2][0] == "AssertionError"


def scale_under_ddp(folder: str) -> None:
    """Gradients are in memory there, averaged, and the same on all ranks."""
    (cache, model, optimizer), scaler = shared(folder, TinyGPT(2), adamw), make_scaler()
    other_cache, other, other_optimizer = alone(folder, TinyGPT(2), adamw)
    other_scaler, data = make_scaler(), own_batches()
    for number in range(4):
        optimizer.zero_grad()
        scaled_loss(scaler, model, next(data), number).backward()
        other_scaler.scale(torch.zeros(()))
        on_ranks.copy_gradients(model, other)
        for one, its_cache, its_optimizer in (
            (scaler, cache, optimizer),
            (other_scaler, other_cache, other_optimizer),
        ):
            one.unscale_(its_optimizer)
            its_cache.clip_grad_norm_(0.1)
            one.step(its_optimizer)
            one.update()
    on_ranks.assert_same_values(cache, other_cache, on_ranks.names_of(other))
    assert set(optimizer.numbers().values()) == {3}


def test_a_scaler_under_ddp(two: Ranks, tmp_path: Path) -> None:
    two.run(scale_under_ddp, str(tmp_path))
