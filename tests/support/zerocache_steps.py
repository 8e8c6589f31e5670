"""The results of training in a cache, for tests that take steps in several ways and compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from zerocache_models import adamw, batches, make_cache

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]
# A training step: model, optimizer, cache, and the step's number.
Step = Callable[[nn.Module, Any, Any, int], None]


def tokens(number: int) -> Tensor:
    return next(batches(number))


def everything(cache: Any, optimizer: Any) -> dict[str, Tensor]:
    """Parameters and state, by name."""
    found = {name: cache.full(name) for name in cache._names.values()}
    for parameter, name in cache._names.items():
        for kind, value in optimizer.state[parameter].items():
            found[f"{name}/{kind}"] = value
    return found


def check_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def trained(
    folder: Path | None, make: Callable[[], nn.Module], step: Step, steps: int, **options: Any
) -> dict[str, Tensor]:
    """The results of training; ``options`` of wrap()."""
    inner: Optimizer = options.pop("inner", adamw)
    sizes = {key: options.pop(key) for key in ("device", "host") if key in options}
    model = make()
    with make_cache(folder, **sizes) as cache:
        _, optimizer = cache.wrap(model, inner(model), **options)
        for number in range(steps):
            step(model, optimizer, cache, number)
        assert cache.store.open == 0
        return everything(cache, optimizer)
