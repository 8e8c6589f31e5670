"""A model's parameters in a ParameterRange, beside the same model in ordinary memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
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


def announce_uses(placed: Placed) -> None:
    """Hooks that tell the range where each module's own parameters are used, in both passes."""

    def end_backward(part: int, _: nn.Module, inputs: tuple[object, ...], __: object) -> None:
        if any(gradient is not None for gradient in inputs):
            placed.range.end(part, True)
        else:
            # No input needs a gradient: torch calls this when the module's backward pass begins.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: placed.range.end(part, True))

    for prefix, module in placed.model.named_modules():
        own = [name for name, _ in module.named_parameters(recurse=False)]
        if not own:
            continue
        part = placed.range.add_part([f"{prefix}.{name}" if prefix else name for name in own])

        def begin(*_: object, part: int = part, backward: bool = False) -> None:
            placed.range.begin(part, backward)

        def end(*_: object, part: int = part, backward: bool = False) -> None:
            placed.range.end(part, backward)

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end, always_call=True)
        module.register_full_backward_pre_hook(partial(begin, backward=True))
        module.register_full_backward_hook(partial(end_backward, part))


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
