"""Checkpoints of a ZeroCache: of its own, and torch's state dicts both ways."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import PAGE, TinyGPT, adamw, assert_same_state, batches, make_cache, train

pytestmark = taco_only

SMALL = (12, 12, 400)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)


def wrapped(
    folder: Path, make: Any = adamw, caps: tuple[int, int, int] = SMALL, layers: int = 6
) -> tuple[Any, Any, Any]:
    model = TinyGPT(layers)
    cache = make_cache(folder / "cache", *caps)
    model, optimizer = cache.wrap(model, make(model))
    return cache, model, optimizer


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [adamw, sgd])
def test_training_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path: Path, make: Any) -> None:
    cache, model, optimizer = wrapped(tmp_path, make)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = batches()
    train(model, optimizer, 3, data)
    scheduler.step()
    extra = {"scheduler": scheduler.state_dict(), "epoch": 3}
    assert cache.save(tmp_path / "saved", extra) == 1
    expected = train(model, optimizer, 3, data)
    # In the same cache; then in another, of other caps, after other steps.
    for again in (False, True):
        if again:
            cache.close()
            cache, model, optimizer = wrapped(tmp_path, make, (400, 400, 10))
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            train(model, optimizer, 2, batches(7))
        found = cache.load(tmp_path / "saved")
        scheduler.load_state_dict(found["scheduler"])
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.009)
        data = batches()
        for _ in range(found["epoch"]):
            next(data)
        assert train(model, optimizer, 3, data) == expected
    cache.close()


def test_what_had_not_been_stepped_begins_anew_after_loading(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path)
    cache.save(tmp_path / "saved")
    expected = train(model, optimizer, 3)
    cache.load(tmp_path / "saved")
    assert len(optimizer.state) == 0
    assert train(model, optimizer, 3) == expected
    cache.close()


class Normed(nn.Module):
    """Has buffers, and a parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.line(x))


def test_buffers_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    model = Normed()
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, adamw(model))
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    cache.save(tmp_path / "saved")
    mean = model.norm.running_mean.clone()
    model(torch.randn(5, 8))
    assert not torch.equal(model.norm.running_mean, mean)
    cache.load(tmp_path / "saved")
    assert torch.equal(model.norm.running_mean, mean)
    assert model.norm.num_batches_tracked == 1
    cache.close()


class Counting(nn.Linear):
    """Has state that is neither a parameter nor a buffer."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return torch.tensor(self.calls)

    def set_extra_state(self, state: Any) -> None:
        self.calls = int(state)


def test_extra_state_of_modules_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    model = nn.Sequential(Counting(8, 8), nn.ModuleDict({"again": Counting(8, 8)})["again"])
    cache = make_cache(None)
    model, _ = cache.wrap(model)
    model(torch.zeros(1, 8))
    cache.save(tmp_path / "saved")
    model(torch.zeros(1, 8))
    model[1](torch.zeros(1, 8))
    cache.load(tmp_path / "saved")
    assert [module.calls for module in model] == [1, 1]
    cache.close()
    other = make_cache(None)
    model, _ = other.wrap(nn.Sequential(Counting(8, 8), nn.Linear(8, 8)))
    with pytest.raises(ValueError, match=r"extra state of other modules: \['1'\]"):
        other.load(tmp_path / "saved")
    assert model[0].calls == 0
    other.close()


def test_learning_rates_computed_by_numpy_are_saved(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    cache, _, optimizer = wrapped(tmp_path)
    optimizer.param_groups[0]["lr"] = numpy.float64(0.5) * numpy.cos(0.0)
    optimizer.param_groups[0]["betas"] = (numpy.float32(0.5), 0.75)
    cache.save(tmp_path / "saved", {"rates": [numpy.float64(0.25)], "steps": numpy.int64(7)})
    optimizer.param_groups[0]["lr"] = 1.0
    assert cache.load(tmp_path / "saved") == {"rates": [0.25], "steps": 7}
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)
    with pytest.raises(TypeError, match="could not be loaded again"):
        cache.save(tmp_path / "saved", numpy.zeros(3))
    cache.close()


def test_an_interrupt_while_a_checkpoint_is_loaded_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far the load has come by then: nothing or all has changed."""
    from taco_torch.zerocache import note

    cache, model, optimizer = wrapped(tmp_path)
    train(model, optimizer, 1)
    cache.save(tmp_path / "saved")
    expected = cache.full("blocks.3.up.weight")
    train(model, optimizer, 2)
    agree = note.Notes.read

    def interrupted(*arguments: Any) -> Any:
        found = agree(*arguments)
        # Its handler is called once the load has returned.
        threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        return found

    # The interrupt comes while pages are loaded, which is not Python's code, or later.
    monkeypatch.setattr(note.Notes, "read", interrupted)

    def load_and_wait() -> None:
        cache.load(tmp_path / "saved")
        time.sleep(60)

    # Python has it by itself unless it was started with the signal ignored, as in a background job.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            load_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)
    loaded = torch.equal(cache.full("blocks.3.up.weight"), expected)
    assert set(optimizer.numbers().values()) == ({1} if loaded else {3})
    train(model, optimizer, 1)
    cache.close()


def test_an_interrupt_that_shows_once_the_pages_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taco_torch.zerocache import note

    cache, model, optimizer = wrapped(tmp_path)
    train(model, optimizer, 1)
    cache.save(tmp_path / "saved")
    train(model, optimizer, 2)
    apply, calls = note.Notes._take_options, 0

    def interrupted(self: Any, found: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        apply(self, found)

    monkeypatch.setattr(note.Notes, "_take_options", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.load(tmp_path / "saved")
    assert set(optimizer.numbers().values()) == {1}
    cache.close()


def test_a_checkpoint_of_something_else_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path)
    train(model, optimizer, 1)
    cache.save(tmp_path / "saved")
    cache.close()
    with pytest.raises(RuntimeError, match="closed"):
        cache.save(tmp_path / "saved")

    other, model, optimizer = wrapped(tmp_path, layers=5)
    before = other.full("norm.weight")
    with pytest.raises(ValueError, match=r"blocks\.5"):
        other.load(tmp_path / "saved")
    with pytest.raises(ValueError, match="nowhere"):
        other.load(tmp_path / "nowhere")
    assert torch.equal(other.full("norm.weight"), before)
    train(model, optimizer, 1)
    other.close()

    stepped_otherwise, _, _ = wrapped(tmp_path, sgd)
    with pytest.raises(ValueError, match=r"exp_avg|AdamW|momentum_buffer"):
        stepped_otherwise.load(tmp_path / "saved")
    stepped_otherwise.close()


def test_a_damaged_checkpoint_stops_everything_until_another_is_loaded(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path)
    train(model, optimizer, 1)
    cache.save(tmp_path / "good")
    cache.save(tmp_path / "bad")
    (data,) = (tmp_path / "bad").glob("*.data")
    with data.open("r+b") as file:
        file.seek(20 * PAGE)
        file.write(b"\xff" * 64)
    with pytest.raises(RuntimeError, match=r"pages-1-0\.data"):
        cache.load(tmp_path / "bad")
    with pytest.raises(RuntimeError, match="failed in the middle"):
        model(next(batches()))
    with pytest.raises(RuntimeError, match="failed in the middle"):
        optimizer.step()
    cache.load(tmp_path / "good")
    train(model, optimizer, 1)
    cache.close()


@pytest.mark.parametrize("make", [adamw, sgd])
def test_state_dicts_are_torchs(tmp_path: Path, make: Any) -> None:
    cache, model, optimizer = wrapped(tmp_path, make)
    plain = TinyGPT()
    plain_optimizer = make(plain)
    assert_same_state(model.state_dict(), plain.state_dict(), assert_close)
    assert_same_state(optimizer.state_dict(), plain_optimizer.state_dict(), assert_close)
    train(model, optimizer, 2)
    train(plain, plain_optimizer, 2)
    assert_same_state(model.state_dict(), plain.state_dict(), assert_close)
    assert_same_state(optimizer.state_dict(), plain_optimizer.state_dict(), assert_close)
    assert_same_state(model.blocks[2].state_dict(), plain.blocks[2].state_dict(), assert_close)
    tied = model.state_dict()
    assert tied["head.weight"] is tied["tokens.weight"]
    cache.close()


@pytest.mark.parametrize("make", [adamw, sgd])
def test_training_moves_to_plain_torch_and_back(tmp_path: Path, make: Any) -> None:
    plain = TinyGPT()
    plain_optimizer = make(plain)
    cache, model, optimizer = wrapped(tmp_path, make)
    data, other_data = batches(), batches()
    train(model, optimizer, 2, data)
    train(plain, plain_optimizer, 2, other_data)
    # Out.
    other = TinyGPT()
    other_optimizer = make(other)
    other.load_state_dict(through_a_file(model.state_dict()))
    other_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    expected = train(plain, plain_optimizer, 2, other_data)
    assert train(other, other_optimizer, 2, data) == pytest.approx(expected, rel=1e-4)
    # Back, into a cache that has trained something else meanwhile.
    train(model, optimizer, 1, batches(5))
    assert model.load_state_dict(through_a_file(plain.state_dict())).missing_keys == []
    optimizer.load_state_dict(through_a_file(plain_optimizer.state_dict()))
    for name, parameter in plain.named_parameters():
        assert torch.equal(cache.full(name), parameter)
    expected = train(plain, plain_optimizer, 2, other_data)
    assert train(model, optimizer, 2, data) == pytest.approx(expected, rel=1e-4)
    # And to nothing: state that is not loaded is gone.
    optimizer.load_state_dict(make(plain).state_dict())
    assert len(optimizer.state) == 0
    cache.close()


@pytest.mark.parametrize("make", [adamw, sgd])
def test_torch_distributed_checkpoint_carries_state_dicts_both_ways(
    tmp_path: Path, make: Any
) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    plain = TinyGPT()
    plain_optimizer = make(plain)
    cache, model, optimizer = wrapped(tmp_path, make)
    data, other_data = batches(), batches()
    train(model, optimizer, 2, data)
    train(plain, plain_optimizer, 2, other_data)

    def move(source: Any, to: Any, folder: Path) -> None:
        dcp.save(
            dict(zip(("model", "optimizer"), get_state_dict(*source), strict=True)),
            checkpoint_id=folder,
        )
        found = dict(zip(("model", "optimizer"), get_state_dict(*to), strict=True))
        dcp.load(found, checkpoint_id=folder)
        set_state_dict(*to, model_state_dict=found["model"], optim_state_dict=found["optimizer"])

    other = TinyGPT()
    other_optimizer = make(other)
    move((model, optimizer), (other, other_optimizer), tmp_path / "out")
    expected = train(plain, plain_optimizer, 2, other_data)
    assert train(other, other_optimizer, 2, data) == pytest.approx(expected, rel=1e-4)
    train(model, optimizer, 1, batches(5))
    move((plain, plain_optimizer), (model, optimizer), tmp_path / "in")
    expected = train(plain, plain_optimizer, 2, other_data)
    assert train(model, optimizer, 2, data) == pytest.approx(expected, rel=1e-4)
    cache.close()


def test_a_trained_optimizer_can_be_wrapped(tmp_path: Path) -> None:
    plain, model = TinyGPT(), TinyGPT()
    plain_optimizer, optimizer = adamw(plain), adamw(model)
    data, other_data = batches(), batches()
    train(plain, plain_optimizer, 2, data)
    train(model, optimizer, 2, other_data)
    cache = make_cache(tmp_path, *SMALL)
    model, optimizer = cache.wrap(model, optimizer)
    expected = train(plain, plain_optimizer, 2, data)
    assert train(model, optimizer, 2, other_data) == pytest.approx(expected, rel=1e-4)
    cache.close()


def test_state_dicts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path)
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    before = cache.full("norm.weight")
    with pytest.raises(ValueError, match=r"groups of \[1\] parameters, the optimizer of \[70\]"):
        optimizer.load_state_dict(adamw(nn.LayerNorm(3, bias=False)).state_dict())
    lacking = optimizer.state_dict()
    del lacking["state"][0]["exp_avg_sq"]
    with pytest.raises(ValueError, match=r"'places' lacks \['exp_avg_sq'\]"):
        optimizer.load_state_dict(lacking)
    more = optimizer.state_dict()
    more["state"][0]["max_exp_avg_sq"] = more["state"][0]["exp_avg"]
    with pytest.raises(ValueError, match=r"has \['max_exp_avg_sq'\] besides"):
        optimizer.load_state_dict(more)
    wrong = optimizer.state_dict()
    wrong["state"][0]["exp_avg"] = torch.zeros(3)
    with pytest.raises(
        ValueError, match=r"exp_avg of parameter 'places' has shape \(3,\), and should"
    ):
        optimizer.load_state_dict(wrong)
    amsgrad = optimizer.state_dict()
    amsgrad["param_groups"][0]["amsgrad"] = True
    with pytest.raises(NotImplementedError, match="amsgrad=True"):
        optimizer.load_state_dict(amsgrad)
    assert_same_state(optimizer.state_dict(), state, assert_close)
    with pytest.raises(ValueError, match="assign=True"):
        model.load_state_dict(TinyGPT().state_dict(), assign=True)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({"places": torch.zeros(3)}, strict=False)
    assert torch.equal(cache.full("norm.weight"), before)
    train(model, optimizer, 1)
    cache.close()


def test_copies_that_do_not_fit_into_memory_are_refused_with_a_pointer_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taco_torch.zerocache import cache as cache_module
    from taco_torch.zerocache import memory

    cache, model, optimizer = wrapped(tmp_path)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    monkeypatch.setattr(cache_module, "available_bytes", lambda: 1000)
    for state_dict in (model.state_dict, optimizer.state_dict):
        with pytest.raises(MemoryError, match=r"use ZeroCache\.save"):
            state_dict()
    with pytest.raises(MemoryError, match="were not given back"):
        cache.close()
    assert cache.closed
    with pytest.raises(RuntimeError, match="was closed without giving it back"):
        model.norm.weight.sum()
