"""Uses that an exception or Ctrl-C leaves open hinder nothing that comes next, the emergency
checkpoint above all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import adamw, make_cache

pytestmark = taco_only

X = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))


class Two(nn.Module):
    """Its backward pass needs both weights until it has ended."""

    error: BaseException | None = None

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(64, 256) * 0.05)
        self.second = nn.Parameter(torch.randn(256, 64) * 0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ self.first)
        if self.error is not None:
            hidden.register_hook(self.fail)
        return hidden @ self.second

    def fail(self, _: torch.Tensor) -> None:
        assert self.error is not None
        raise self.error


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), Two(), Two(), nn.Linear(64, 8))


def least(folder: Path) -> Any:
    """With room for Two (128 KiB, 8 pages and parts of two more) and no more."""
    return make_cache(folder, 10, 5, 100)


def in_backward(model: nn.Module, error: BaseException) -> None:
    model[1].error = error
    with pytest.raises(type(error)):
        model(X).square().mean().backward()
    model[1].error = None


def in_forward(model: nn.Module, error: BaseException) -> None:
    def fail(*_: Any) -> None:
        raise error

    loss = model(X).square().mean()
    loss.backward()
    handle = model[2].register_forward_pre_hook(fail)
    with pytest.raises(type(error)):
        model(X)
    handle.remove()


def use(cache: Any, model: nn.Module, *_: Any) -> None:
    with cache.use(model[2]):
        pass


CALLS: dict[str, Callable[[Any, Any, Any, Path], object]] = {
    "save": lambda cache, model, optimizer, folder: cache.save(folder / "saved"),
    "state_dict": lambda cache, model, optimizer, folder: model.state_dict(),
    "its state_dict": lambda cache, model, optimizer, folder: optimizer.state_dict(),
    "step": lambda cache, model, optimizer, folder: optimizer.step(),
    "full": lambda cache, model, optimizer, folder: cache.full("2.first"),
    "set": lambda cache, model, optimizer, folder: cache.full("2.first", torch.ones(64, 256)),
    "load_state_dict": lambda cache, model, optimizer, folder: model.load_state_dict(
        made().state_dict()
    ),
    "use": use,
}


@pytest.mark.parametrize("where", [in_backward, in_forward])
@pytest.mark.parametrize("call", CALLS)
def test_whatever_comes_next_works_at_the_least_caps(
    tmp_path: Path, call: str, where: Callable[..., None]
) -> None:
    model = made()
    cache = least(tmp_path / "cache")
    model, optimizer = cache.wrap(model, adamw(model))
    model(X).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    where(model, KeyboardInterrupt())
    CALLS[call](cache, model, optimizer, tmp_path)
    optimizer.zero_grad()
    model(X).square().mean().backward()
    optimizer.step()
    cache.close()


def test_a_step_without_room_changes_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    model = made()
    cache = make_cache(tmp_path / "cache", 9, 4, 100)  # full of Two
    model, optimizer = cache.wrap(model, adamw(model))
    model(X).square().mean().backward()
    before = {name: cache.full(name) for name, _ in model.named_parameters()}
    with cache.use(model[1], writes=False), pytest.raises(ValueError, match="device"):
        optimizer.step()
    for name, values in before.items():
        assert torch.equal(cache.full(name), values)
    optimizer.step()
    assert not torch.equal(cache.full("0.weight"), before["0.weight"])
    cache.close()
