"""How much memory gradients take in a backward pass. Test support."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

LAYERS, SIDE = 48, 512  # of 1 MiB
GRADIENT_BYTES = LAYERS * SIDE * SIDE * 4


class Deep(nn.Module):
    """Little beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10


def gradient_growth(folder: str, wrap: Callable[[Any, nn.Module], tuple[Any, Any]]) -> int:
    """Bytes that a third backward pass adds to this process's memory, at most. ``wrap`` has a
    cache take the model."""
    from taco_torch.zerocache import ZeroCache

    own = Path(folder, f"rank-{dist.get_rank()}")
    own.mkdir(parents=True)
    # Large tensors are given back to the system as soon as they are gone, whatever went before.
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 256 << 10)  # M_MMAP_THRESHOLD
    # All of it fits: so nothing but gradients comes and goes.
    cache = ZeroCache("128MiB", "192MiB", f"{own}:64MiB", page="1MiB")
    inner = Deep()
    seen: list[int] = []
    model, optimizer = wrap(cache, inner)
    for parameter in inner.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: seen.append(resident_bytes()))
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, SIDE))
        libc.malloc_trim(0)
        seen[:] = [resident_bytes()]
        loss.backward()
        optimizer.step()
    cache.close()
    return max(seen) - seen[0]
