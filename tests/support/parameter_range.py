"""A model's parameters in a ParameterRange, beside the same model in ordinary memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
        self.range = make_range(frames)
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


def move_around_use(placed: Placed) -> None:
    """Hooks that fetch a layer's parameters before it is used, forward and backward, and evict them
    afterwards."""

    def names_of(prefix: str, module: nn.Module) -> list[str]:
        return [f"{prefix}.{name}" for name, _ in module.named_parameters(recurse=False)]

    for prefix, module in placed.model.named_modules():
        names = names_of(prefix, module)
        if not names:
            continue

        def fetch(*_: object, names: list[str] = names) -> None:
            for name in names:
                placed.range.fetch(name)

        def evict(*_: object, names: list[str] = names) -> None:
            for name in names:
                placed.range.evict(name)

        module.register_forward_pre_hook(fetch)
        module.register_forward_hook(evict)
        module.register_full_backward_pre_hook(fetch)
        module.register_full_backward_hook(evict)


def gradients(model: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.grad


def assert_equal_gradients(model: nn.Module, plain: nn.Module) -> None:
    for (name, got), (_, expected) in zip(gradients(model), gradients(plain), strict=True):
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
