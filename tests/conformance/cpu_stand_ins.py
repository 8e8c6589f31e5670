"""Lets the tests that torch's suite writes for GPUs run on CPU tensors.

Most of them test DDP or a collective, not a device: with `.cuda()` that leaves tensors where they
are, they test the same thing here. Those that do need a device fail over gloo too, and so never
enter the list of what must pass.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

FACTORIES = ("arange", "empty", "full", "ones", "rand", "randint", "randn", "tensor", "zeros")


def stay(self: Any, *arguments: Any, **options: Any) -> Any:
    return self


def nothing(*arguments: Any, **options: Any) -> None:
    return None


def install(suite: Any) -> None:
    """Puts the stand-ins into torch and into the imported suite. For test processes only."""
    torch.Tensor.cuda = stay
    torch.nn.Module.cuda = stay
    torch.cuda.set_device = nothing
    torch.cuda.synchronize = nothing
    torch.cuda.device = lambda *arguments: contextlib.nullcontext()
    suite.init_multigpu_helper = lambda world, backend: {rank: [rank] for rank in range(int(world))}

    original = DistributedDataParallel.__init__

    def without_devices(self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        for name in ("device_ids", "output_device"):
            options.pop(name, None)
        original(self, module, *arguments, **options)

    DistributedDataParallel.__init__ = without_devices

    move = torch.nn.Module.to

    def to_cpu(self: Any, *arguments: Any, **options: Any) -> Any:
        kept = [a for a in arguments if not names_a_gpu(a)]
        if names_a_gpu(options.get("device")):
            options.pop("device")
        return move(self, *kept, **options) if kept or options else self

    torch.nn.Module.to = to_cpu
    for name in FACTORIES:
        setattr(torch, name, on_cpu(getattr(torch, name)))


def on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function that makes tensors, as it is but for GPUs named by `device=`: they stay unused."""

    @functools.wraps(make)
    def made_on_cpu(*arguments: Any, **options: Any) -> torch.Tensor:
        if names_a_gpu(options.get("device")):
            options.pop("device")
        return make(*arguments, **options)

    return made_on_cpu


def names_a_gpu(place: Any) -> bool:
    """Whether what is asked for is a GPU: its number, "cuda:0" or a device."""
    if isinstance(place, torch.device):
        return place.type == "cuda"
    return (isinstance(place, int) and not isinstance(place, bool)) or (
        isinstance(place, str) and place.startswith("cuda")
    )
