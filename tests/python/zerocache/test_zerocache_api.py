"""ZeroCache as a program sees it: the loop stays as it was, and so do its results."""

from __future__ import annotations

import copy
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import taco_only
from torch import nn
from zerocache_models import (
    LENGTH,
    PAGE,
    VOCABULARY,
    WIDTH,
    TinyGPT,
    adamw,
    batches,
    make_cache,
    state_bytes,
    train,
)

pytestmark = taco_only

# Pages of device, host and ssd: all on the device; some in the host; nearly all on disk.
CAPS = [(400, 400, 0), (40, 400, 0), (12, 12, 400)]
STEPS = 6


def wrapped(folder: Path, caps: tuple[int, int, int], make: Any = adamw) -> tuple[Any, Any, Any]:
    model = TinyGPT()
    device, host, ssd = caps
    cache = make_cache(folder if ssd else None, device, host, ssd)
    model, optimizer = cache.wrap(model, make(model))
    return cache, model, optimizer


def test_losses_do_not_depend_on_the_caps(tmp_path: Path) -> None:
    assert state_bytes(TinyGPT()) > 5 * (12 + 12) * PAGE
    runs = []
    for caps in CAPS:
        cache, model, optimizer = wrapped(tmp_path, caps)
        runs.append((train(model, optimizer, STEPS), cache.full("blocks.3.up.weight")))
        cache.close()
    plain = TinyGPT()
    expected = train(plain, adamw(plain), STEPS)
    for losses, weight in runs:
        assert losses == runs[0][0]
        assert torch.equal(weight, runs[0][1])
        assert losses == pytest.approx(expected, rel=1e-5)
    assert runs[0][0][0] == expected[0]


def with_accumulation(model: Any, optimizer: Any) -> list[float]:
    losses = []
    data = batches()
    for _ in range(3):
        for _ in range(2):
            loss = model(next(data)) / 2
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():  # an evaluation in between
                losses.append(model(next(data)).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def with_scheduler(model: Any, optimizer: Any) -> list[float]:
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=4)
    losses, data = [], batches()
    for _ in range(5):
        losses += train(model, optimizer, 1, data)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 1e-2
    return losses


def with_clipping(model: Any, optimizer: Any) -> list[float]:
    norms = []

    def clip() -> None:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())

    return train(model, optimizer, 4, between=clip) + norms


def with_scaler(model: Any, optimizer: Any) -> list[float]:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    losses, data = [], batches()
    for step in range(4):
        loss = model(next(data))
        scaler.scale(loss).backward()
        if step == 1:
            next(iter(model.parameters())).grad.fill_(float("inf"))  # this step is left out
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def with_a_closure(model: Any, optimizer: Any) -> list[float]:
    data = batches()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(next(data))
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(3)]


def with_edited_gradients(model: Any, optimizer: Any) -> list[float]:
    def edit() -> None:
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        model.blocks[2].up.weight.grad = None  # this one rests

    return train(model, optimizer, 4, between=edit)


LOOPS = [
    with_accumulation,
    with_scheduler,
    with_clipping,
    with_scaler,
    with_a_closure,
    with_edited_gradients,
]


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_mean_what_they_mean_in_torch(
    tmp_path: Path, loop: Callable[[Any, Any], list[float]]
) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    roomy, other, other_optimizer = wrapped(tmp_path, CAPS[0])
    plain = TinyGPT()
    losses = loop(model, optimizer)
    assert losses == loop(other, other_optimizer)
    assert losses == pytest.approx(loop(plain, adamw(plain)), rel=1e-4)
    cache.close()
    roomy.close()


def test_what_wrap_returns_is_the_same_model_and_an_optimizer(tmp_path: Path) -> None:
    model = TinyGPT()
    before = list(model.parameters())
    given = adamw(model)
    cache = make_cache(tmp_path, 12, 12)
    same, optimizer = cache.wrap(model, given)
    assert same is model
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is given.param_groups
    with pytest.raises(RuntimeError, match="call step\\(\\) of the optimizer that wrap"):
        given.step()
    with pytest.raises(RuntimeError, match="holds a model already"):
        cache.wrap(nn.Linear(2, 2), None)
    with pytest.raises(RuntimeError, match="cannot be added after"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    cache.close()


def test_a_scheduler_made_before_wrap_works_and_does_not_complain(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model = TinyGPT()
    given = adamw(model)
    scheduler = torch.optim.lr_scheduler.StepLR(given, 1, gamma=0.5)
    cache = make_cache(tmp_path, 12, 12)
    model, optimizer = cache.wrap(model, given)
    train(model, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 5e-3
    assert [str(w.message) for w in recwarn if "lr_scheduler" in str(w.message)] == []
    cache.close()


def test_parameters_are_read_and_set_wherever_they_are(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    plain = TinyGPT()
    for name, parameter in plain.named_parameters():
        assert torch.equal(cache.full(name), parameter)
    train(model, optimizer, 1)
    weight = model.blocks[5].down.weight
    values = torch.randn(weight.shape, dtype=torch.float64)
    version = weight._version
    cache.full(weight, values)
    assert torch.equal(cache.full(weight), values.float())
    assert weight._version > version
    with pytest.raises(ValueError, match=r"'blocks\.5\.down\.weight' has shape .*the value \(3,\)"):
        cache.full(weight, torch.zeros(3))
    with pytest.raises(ValueError, match="the value is no tensor: 3"):
        cache.full(weight, 3)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="none of the parameters"):
        cache.full(nn.Parameter(torch.zeros(3)))
    with pytest.raises(KeyError, match=r"blocks\.9\.weight"):
        cache.full("blocks.9.weight")
    cache.close()


def test_a_touch_outside_modules_raises_and_use_announces_one(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    train(model, optimizer, 1)
    weight = model.blocks[1].out.weight
    with pytest.raises(RuntimeError, match=r"'blocks\.1\.out\.weight' is not in memory now"):
        weight.norm()
    expected = cache.full(weight)
    with cache.use(weight):
        assert torch.equal(weight, expected)
    hidden = torch.ones(1, WIDTH, requires_grad=True)
    with cache.use(weight) as keep:
        out = keep(F.linear(hidden, weight))
    out.sum().backward()
    torch.testing.assert_close(hidden.grad[0], expected.sum(0))
    cache.close()


@pytest.mark.parametrize("how", ["in place", "through .data"])
def test_changes_in_a_use_are_kept(tmp_path: Path, how: str) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    train(model, optimizer, 2)
    weight = model.blocks[1].out.weight
    expected = cache.full(weight) * 2
    with torch.no_grad(), cache.use(model.blocks[1].out):
        target = weight if how == "in place" else weight.data
        target.mul_(2)
    train(model, optimizer, 0)
    for _ in range(2):  # everything else passes through the device
        with torch.no_grad():
            model(next(batches()))
    assert torch.equal(cache.full(weight), expected)
    cache.close()


class Clamped(nn.Linear):
    """Keeps its weight small, by writing to it whenever it runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.05, 0.05)
        return super().forward(x)


def test_a_module_may_write_to_its_parameters_in_forward(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Clamped(64, 64) for _ in range(8)))
    plain = copy.deepcopy(model)
    cache = make_cache(tmp_path, 4, 4)
    model, _ = cache.wrap(model)
    x = torch.randn(2, 64)
    for _ in range(2):
        assert torch.equal(model(x), plain(x))
    for name, parameter in plain.named_parameters():
        assert torch.equal(cache.full(name), parameter)
    cache.close()


def test_close_gives_everything_back(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    train(model, optimizer, 2)
    expected = {name: cache.full(name) for name, _ in model.named_parameters()}
    loss = model(next(batches())).item()
    cache.close()
    assert cache.closed
    assert list(tmp_path.iterdir()) == []
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name])
    assert model(next(batches())).item() == loss
    train(model, adamw(model), 1)  # plain torch goes on
    cache.close()
    for call in (optimizer.step, cache.report, lambda: cache.full("norm.weight")):
        with pytest.raises(RuntimeError, match="this cache is closed"):
            call()


def test_a_close_that_is_refused_leaves_the_bytes_for_the_next(tmp_path: Path) -> None:
    cache, model, _ = wrapped(tmp_path, CAPS[2])
    expected = {name: cache.full(name) for name, _ in model.named_parameters()}
    weight = model.blocks[3].up.weight
    held = weight.data
    weight.data = torch.zeros_like(weight, device="cpu", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"'blocks\.3\.up\.weight'.*another storage"):
        cache.close()
    assert not cache.closed
    weight.data = held
    cache.close()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name


def test_with_closes_also_after_an_exception(tmp_path: Path) -> None:
    model, cache = TinyGPT(), make_cache(tmp_path, 12, 12)

    def loop() -> None:
        with cache:
            cache.wrap(model, adamw(model))
            raise KeyError("in the loop")

    with pytest.raises(KeyError):
        loop()
    assert cache.closed
    assert torch.equal(model.norm.weight, torch.ones(WIDTH))


def test_an_exception_in_the_loop_leaves_the_cache_usable(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    roomy, other, other_optimizer = wrapped(tmp_path, CAPS[0])
    for each in (model, other):
        with pytest.raises(IndexError):
            each(torch.full((4, LENGTH), VOCABULARY))
        loss = each(next(batches()))
        handle = each.blocks[2].up.weight.register_hook(lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        handle.remove()
        each.zero_grad()
    assert train(model, optimizer, 3) == train(other, other_optimizer, 3)
    cache.close()
    roomy.close()


def test_frozen_parameters_have_no_state(tmp_path: Path) -> None:
    model, plain = TinyGPT(), TinyGPT()
    for each in (model, plain):
        for block in each.blocks[:4]:
            block.requires_grad_(False)
    cache = make_cache(tmp_path, 12, 12)
    model, optimizer = cache.wrap(model, adamw(model))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert cache.stats()["state_bytes"] == 8 * trained
    losses = train(model, optimizer, 3)
    assert losses == pytest.approx(train(plain, adamw(plain), 3), rel=1e-5)
    assert len(optimizer.state) == sum(p.requires_grad for p in model.parameters())
    cache.close()


def test_bfloat16_parameters_are_rounded_from_a_float32_master(tmp_path: Path) -> None:
    def run(caps: tuple[int, int, int]) -> list[float]:
        model = TinyGPT().bfloat16()
        cache = make_cache(tmp_path if caps[2] else None, *caps)
        model, optimizer = cache.wrap(model, adamw(model))
        losses = train(model, optimizer, 5)
        cache.close()
        return losses

    losses = run(CAPS[2])
    assert losses == run(CAPS[0])
    plain = TinyGPT()
    assert losses == pytest.approx(train(plain, adamw(plain), 5), rel=0.05)


def test_the_trained_model_goes_with_its_last_reference(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    train(model, optimizer, 1)
    gone = weakref.ref(model)
    del cache, model, optimizer
    gc.collect()
    assert gone() is None
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_is_told_and_harms_nobody(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    train(model, optimizer, 1)
    child = os.fork()
    if child == 0:
        try:
            model(next(batches()))
        except ValueError as error:
            os._exit(0 if "was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    roomy, other, other_optimizer = wrapped(tmp_path, CAPS[0])
    train(other, other_optimizer, 1)
    assert train(model, optimizer, 2) == train(other, other_optimizer, 2)
    cache.close()
    roomy.close()


def test_the_report_tells_what_was_moved(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path, CAPS[2])
    train(model, optimizer, 3)
    stats = cache.stats()
    assert stats["parameter_bytes"] * 3 == stats["parameter_bytes"] + stats["state_bytes"]
    assert stats["tiers"]["device"]["resident"] <= stats["tiers"]["device"]["capacity"] == 12 * PAGE
    assert stats["ways"]["host to ssd"]["bytes"] > 0
    assert stats["ways"]["ssd to host"]["bytes"] > 0
    text = cache.report()
    for word in ("device", "host to ssd", "back in time", "waited for"):
        assert word in text
    cache.close()
