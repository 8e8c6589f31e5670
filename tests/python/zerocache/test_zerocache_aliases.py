"""Programs that reach a parameter's memory by other ways see the same with every cap."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import adamw, make_cache

pytestmark = taco_only

X = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)) * 3 + 1
CAPS = [(4, 6, 60), (60, 60, 60)]


class Clamped(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-0.05, 0.05)
        return super().forward(x)


class Keeping(nn.Linear):
    """Takes an alias once, and changes it whenever it runs."""

    alias: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.alias is None:
            self.alias = self.weight.data.view(-1)
        self.alias.mul_(0.99)
        return super().forward(x)


class ActNorm(nn.Linear):
    """Sets itself by the first batch, as in Glow and VQGAN."""

    begun = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not self.begun:
            self.begun = True
            self.bias.data.copy_(-x.mean(0))
            self.weight.data[:] = torch.diag(1 / (x.std(0) + 1e-6))
        return super().forward(x)


def made(kind: Callable[..., nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[kind(64, 64) for _ in range(6)])


def losses_of(model: nn.Module, optimizer: Any) -> list[float]:
    found = []
    model.eval()  # so that pages have clean copies elsewhere
    with torch.no_grad():
        found.append(model(X).mean().item())
    model.train()
    for _ in range(3):
        loss = (model(X) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("kind", [Clamped, Keeping, ActNorm])
def test_a_module_that_writes_through_data_learns_as_in_torch(
    tmp_path: Path, kind: Callable[..., nn.Module]
) -> None:
    plain = made(kind)
    expected = losses_of(plain, adamw(plain))
    found = []
    for caps in CAPS:
        cache = make_cache(tmp_path / str(caps[0]), *caps)
        model = made(kind)
        model, optimizer = cache.wrap(model, adamw(model))
        found.append(losses_of(model, optimizer))
        cache.close()
    assert found[0] == found[1]
    assert found[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_use_writes_is_kept_if_it_ends_by_an_exception_too(
    tmp_path: Path, fails: bool
) -> None:
    cache = make_cache(tmp_path, 4, 6, 60)
    model, _ = cache.wrap(made(nn.Linear))
    with torch.no_grad():
        model(X)
    expected = cache.full("0.weight") * 0.5

    def change() -> None:
        with cache.use(model[0].weight):
            model[0].weight.data.mul_(0.5)
            if fails:
                raise KeyError

    if fails:
        with pytest.raises(KeyError):
            change()
    else:
        change()
    with torch.no_grad():
        model(X)
        model(X)
    assert torch.equal(cache.full("0.weight"), expected)
    cache.close()


def test_arrays_outlast_the_use_and_cannot_be_written(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, 4, 6, 60)
    model, _ = cache.wrap(made(nn.Linear))
    weight = model[0].weight
    expected = cache.full(weight)
    with cache.use(weight):
        arrays = [
            weight.detach().numpy(),
            np.asarray(weight.detach()),
            weight.detach().view(-1).numpy().reshape(64, 64),
        ]
        shared = torch.from_dlpack(weight.detach())
        capsule = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(weight.detach()))
    with torch.no_grad():
        model(X)
        model(X)
    for array in arrays:
        assert np.array_equal(array, expected.numpy())
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert torch.equal(shared, expected)
    assert torch.equal(capsule, expected)
    cache.close()
    assert np.shares_memory(weight.detach().numpy(), weight.detach().numpy())


def test_what_is_written_through_a_pointer_is_kept_in_a_use_that_writes(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, 4, 6, 60)
    model, _ = cache.wrap(made(nn.Linear))
    model.eval()
    with torch.no_grad():
        model(X)  # pages have clean copies elsewhere
    expected = cache.full("0.weight")
    expected[0, 0] = 3
    with cache.use(model[0].weight, writes=True):
        ctypes.c_float.from_address(model[0].weight.data_ptr()).value = 3
    with torch.no_grad():
        model[1:](X)
    assert torch.equal(cache.full("0.weight"), expected)
    cache.close()


def test_a_pointer_kept_beyond_its_use_ends_the_process_and_says_whose_it_was(
    tmp_path: Path, capfd: Any
) -> None:
    cache = make_cache(tmp_path, 4, 6, 60)
    model, _ = cache.wrap(made(nn.Linear))
    with cache.use(model[0].weight):
        kept = ctypes.c_float.from_address(model[0].weight.data_ptr())
        assert kept.value == model[0].weight[0, 0].item()
    with pytest.raises(RuntimeError, match=r"'0.weight' is not in memory now"):
        model[0].weight.data_ptr()
    with torch.no_grad():
        model[1:](X)
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with Path(os.devnull).open("w") as nowhere:
            faulthandler.enable(nowhere)  # whose dump is not looked at
            os._exit(kept.value == 0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGSEGV
    assert "'0.weight' is not in memory now, and a pointer to it was" in capfd.readouterr().err
    with cache.use(model[0].weight):
        assert kept.value == model[0].weight[0, 0].item()
    cache.close()


class ReadTwice(nn.Module):
    """Its backward pass reads the weight, by an alias, when its gradient is final."""

    def __init__(self, *_: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight.data) @ self.weight


def test_a_weight_that_a_pass_has_in_use_is_not_stepped_yet(tmp_path: Path) -> None:
    found = []
    for options in ({}, {"step_in_backward": True}):
        cache = make_cache(tmp_path / str(len(options)), 8, 8, 60)
        model = made(ReadTwice)
        model, optimizer = cache.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), **options)
        found.append(losses_of(model, optimizer))
        cache.close()
    assert found[0] == found[1]


def test_aliases_that_nobody_holds_are_forgotten(tmp_path: Path) -> None:
    """Also where no use ends that would look at them; what is held is looked at as before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with make_cache(tmp_path, 8, 8) as cache:
        model, _ = cache.wrap(model)
        held = model[1].weight.data
        for _ in range(20_000):
            assert model[0].weight.data.shape == (8, 8)
        assert len(cache._hooks.aliases._taken) < 3000
        with cache.use(model[1]):
            held.fill_(2.0)
        assert cache.full("1.weight").sum() == 128
