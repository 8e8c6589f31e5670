"""A model's parameters in a ParameterRange, beside the same model in ordinary memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

FRAME = 64 << 10


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


def assert_same_results(
    make: Callable[[], nn.Module], run: Callable[[Any], Any], frames: int
) -> None:
    """Runs the same program on a model in a range of few frames and on one in ordinary memory.
    What ``run`` returns (tensors, in containers) and all gradients must have the same bits, and
    nothing may be left in use."""
    torch.manual_seed(0)
    placed = Placed(make(), frames=frames, evict=True)
    announce_uses(placed)
    torch.manual_seed(0)
    plain = make()
    got, expected = seeded(run, placed.model), seeded(run, plain)
    assert placed.range.open == 0
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)
    assert_equal_gradients(placed.model, plain, missing=True)


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


def footprint() -> dict[str, int]:
    """What must not grow: threads, descriptors, mappings, and resident memory in bytes."""
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    return {
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "resident": int(status["VmRSS"].split()[0]) * 1024,
    }
