"""A model's parameters in a ParameterRange, beside the same model in ordinary memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

FRAME = 64 << 10
INPUT = torch.linspace(-1, 1, 4 * 32).reshape(4, 32)  # of layers()


def make_range(frames: int = 64, range_frames: int = 64, frame_bytes: int = FRAME) -> Any:
    from taco_torch import _C

    return _C.zerocache.ParameterRange(frame_bytes, frames, range_frames * frame_bytes)


def layers(count: int = 2, width: int = 32) -> nn.Sequential:
    """Linear layers with tanh in between, always with the same values."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for _ in range(count):
        modules += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*modules)


class Placed:
    """A model whose parameters have been placed; they can be moved by name or all together."""

    def __init__(self, model: nn.Module, frames: int = 64, evict: bool = False) -> None:
        """``evict``: each at once, so that more of them may be placed than there are frames for."""
        self.model = model
        self.range = make_range(frames, range_frames=256)
        self.names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.range.place(name, parameter)
            if evict:
                self.range.evict(name)

    def evict(self) -> None:
        for name in self.names:
            self.range.evict(name)

    def fetch(self) -> None:
        for name in self.names:
            self.range.fetch(name)


def announce_uses(placed: Placed) -> Any:
    """The hooks that tell the range what is used when."""
    from taco_torch.zerocache.hooks import attach

    return attach(placed.model, placed.range)


class InRange:
    """A model in a range of few frames, one or more for each parameter."""

    def __init__(self, model: nn.Module, frames: int) -> None:
        self.placed = Placed(model, frames=frames, evict=True)
        announce_uses(self.placed)
        self.model = model

    def open(self) -> int:
        return int(self.placed.range.open)

    def close(self) -> None:
        pass


PAGE = 4096


class InCache:
    """A model in a cache of few pages, most of it in memory of the host and on a disk."""

    def __init__(self, model: nn.Module, pages: int, directory: Path) -> None:
        from taco_torch.zerocache import ZeroCache

        self.cache = ZeroCache(
            pages * PAGE, 4 * PAGE, f"{directory}:64MiB", page=PAGE, threads=1, _poison=True
        )
        self.model, _ = self.cache.wrap(model)
        self.pages = pages

    def open(self) -> int:
        return int(self.cache.store.open)

    def close(self) -> None:
        stats = self.cache.stats()
        self.cache.close()
        moved = stats["hits"] + stats["misses"]
        assert moved > 0 or stats["parameter_bytes"] <= self.pages * PAGE


def assert_same_results(
    make: Callable[[], nn.Module],
    run: Callable[[Any], Any],
    hold: Callable[[nn.Module], InRange | InCache],
) -> None:
    """Runs the same program on a model that ``hold`` moves and on one in ordinary memory. What
    ``run`` returns (tensors, in containers) and all gradients must have the same bits, and nothing
    may be left in use."""
    torch.manual_seed(0)
    held = hold(make())
    torch.manual_seed(0)
    plain = make()
    try:
        got, expected = seeded(run, held.model), seeded(run, plain)
        assert held.open() == 0
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert torch.equal(one, other)
        assert_equal_gradients(held.model, plain, missing=True)
    finally:
        held.close()


def seeded(run: Callable[[Any], Any], model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1)
    leaves = pytree.tree_leaves(run(model))
    return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def gradients(model: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.grad


def assert_equal_gradients(model: nn.Module, plain: nn.Module, missing: bool = False) -> None:
    """``missing``: a parameter may be without a gradient, in both models."""
    for (name, got), (_, expected) in zip(gradients(model), gradients(plain), strict=True):
        if missing and expected is None:
            assert got is None, name
            continue
        assert got is not None, name
        assert expected is not None, name
        assert torch.equal(got, expected), name
