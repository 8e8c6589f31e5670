"""torch's GradScaler over gradients that a cache keeps on pages, or that ranks average."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import zerocache_ranks as on_ranks
from conftest import taco_only
from marks import whole
from spawn_ranks import Ranks
from torch import Tensor, nn
from zerocache_models import TinyGPT, adamw, make_cache
from zerocache_ranks import CAPS, alone, own_batches, refused, shared, state_of, values_of
from zerocache_spread import average, sharded
from zerocache_steps import Step, check_same, everything, tokens, trained

pytestmark = taco_only

INF = float("inf")
SKIPPED = 2  # the step whose loss is infinite
KEPT = {"step_in_backward": True, "clipping": True}


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


def scale_beside(folder: str, clips: bool, wrap: dict[str, Any]) -> list[float]:
    """Ours, and a cache of each rank's own, whose gradients are averaged by hand."""
    (cache, model, optimizer), scaler = sharded(folder, TinyGPT(2), **wrap), make_scaler()
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


@pytest.mark.parametrize("wrap", [{}, KEPT], ids=["at the end", "kept"])
@pytest.mark.parametrize("clips", [True, False])
def test_ranks_step_and_skip_together(
    job: Ranks, tmp_path: Path, clips: bool, wrap: dict[str, Any]
) -> None:
    for scales in job.run(scale_beside, str(tmp_path), clips, wrap):
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


# Gradients of which every rank has all means: in memory, or on its pages until the step.

WORLDS = ["gloo-2", whole("gloo-4"), "taco-2", "taco-4"]
MAX_NORM = 0.1


class Scaling(NamedTuple):
    """The findings of five steps, bit for bit, and what they leave."""

    losses: list[str]
    norms: list[str]
    scales: list[float]
    values: dict[str, Tensor]


def shared_by_ddp(folder: str, wrap: dict[str, Any]) -> tuple[Any, Any, Any]:
    # Several buckets, and pages that wait for gradients of two of them.
    return shared(folder, TinyGPT(2), adamw, wrap, bucket_cap_mb=0.05)


def shared_by_group(folder: str, wrap: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Averaged by the cache, or by the program where nothing is kept."""
    cache, model = make_cache(Path(folder) / f"group-{dist.get_rank()}", *CAPS), TinyGPT(2)
    return cache, *cache.wrap(model, adamw(model), process_group=dist.group.WORLD, **wrap)


SHARED = {"ddp": shared_by_ddp, "group": shared_by_group}


class Beside:
    """A model in a cache of this rank alone, which is given the means, and which torch clips."""

    def __init__(self, folder: str) -> None:
        self._cache, self._model, self._optimizer = alone(folder, TinyGPT(2), adamw)
        self._scaler = make_scaler()

    def forward(self, batch: Tensor, number: int) -> str:
        loss = scaled_loss(self._scaler, self._model, batch, number)
        return loss.item().hex()

    def step(self, means: nn.Module) -> str:
        on_ranks.copy_gradients(means, self._model)
        self._scaler.unscale_(self._optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), MAX_NORM)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return norm.item().hex()

    def close(self, found: Scaling) -> None:
        """Compares what it has come to with what ranks have together."""
        assert self._scaler.get_scale() == found.scales[-1]
        for name in on_ranks.names_of(self._model):
            assert torch.equal(self._cache.full(name), found.values[name]), name
        self._cache.close()


def scale_and_clip(folder: str, way: str, wrap: dict[str, Any]) -> Scaling:
    """Gradients that stay in memory are those of one process too, at every step."""
    Path(folder).mkdir(exist_ok=True)
    (cache, model, optimizer), scaler = SHARED[way](folder, wrap), make_scaler()
    beside = None if wrap else Beside(folder)
    data, found = own_batches(), Scaling([], [], [], {})
    for number in range(5):
        optimizer.zero_grad()
        batch = next(data)
        loss = scaled_loss(scaler, model, batch, number)
        found.losses.append(loss.item().hex())
        assert beside is None or beside.forward(batch, number) == found.losses[-1]
        loss.backward()
        if way == "group" and not wrap:
            average(model)
        own_norm = None if beside is None else beside.step(model)
        assert not wrap or all(parameter.grad is None for parameter in model.parameters())
        scaler.unscale_(optimizer)
        norm = cache.clip_grad_norm_(MAX_NORM).item()
        found.norms.append(norm.hex())
        assert beside is None or own_norm == norm.hex()
        assert norm > MAX_NORM or number == SKIPPED
        before = {**values_of(cache), **state_of(optimizer)} if number == SKIPPED else None
        scaler.step(optimizer)
        if before is not None:
            check_same({**values_of(cache), **state_of(optimizer)}, before)
        scaler.update()
        found.scales.append(scaler.get_scale())
    assert set(optimizer.numbers().values()) == {4}
    found.values.update({**values_of(cache), **state_of(optimizer)})
    cache.close()
    if beside is not None:
        beside.close(found)
    return found


def scale_both_ways(folder: str, way: str) -> list[float]:
    usual = scale_and_clip(f"{folder}/usual", way, {})
    kept = scale_and_clip(f"{folder}/kept", way, KEPT)
    assert kept[:3] == usual[:3]
    check_same(kept.values, usual.values)
    return kept.scales


@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("job", WORLDS, indirect=True)
def test_clipped_steps_have_the_bits_of_one_process(job: Ranks, tmp_path: Path, way: str) -> None:
    for scales in job.run(scale_both_ways, str(tmp_path), way):
        assert scales == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0]
