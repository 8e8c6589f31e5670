"""Models whose gradients a test chooses, and what LightCC must make of them.

Run with LIGHT_INTRA_SIZE=1, where every rank counts as a host of its own: what it sends is coded,
whatever carries it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OWN_HOSTS = {"LIGHT_INTRA_SIZE": "1", "TACO_LOG": "warning"}
SIZES = (3000, 50, 1, 2000)
ELEMENTS = sum(SIZES)
RATIO = 0.1
DENSE_STEPS = 2  # DDP's first arrangement of its buckets, and the first step with the second

same = functools.partial(torch.testing.assert_close, rtol=0, atol=0)
close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
# Compares sums over several steps.
near = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


class Bag(nn.Module):
    """Parameters whose gradients are the inputs."""

    def __init__(self, sizes: Sequence[int] = SIZES, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(n, dtype=dtype)) for n in sizes)

    def forward(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        terms = [
            (weight * gradient).sum()
            for weight, gradient in zip(self.weights, gradients, strict=True)
            if gradient is not None
        ]
        return torch.stack(terms).sum()


def compressed(
    compression: str = "topk", settings: dict[str, Any] | None = None, **options: Any
) -> DistributedDataParallel:
    import taco_torch

    model = DistributedDataParallel(Bag(), **options)
    settings = {"ratio": RATIO, "threshold": 0} if settings is None else settings
    taco_torch.lightcc.compress(model, compression, **settings)
    return model


def chosen(step: int, rank: int, sizes: Sequence[int] = SIZES) -> list[torch.Tensor]:
    """One rank's gradients in one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(n, generator=generator) for n in sizes]


def everyones(step: int, world: int = 3) -> list[torch.Tensor]:
    return [flat(chosen(step, rank)) for rank in range(world)]


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def owed(model: nn.Module) -> torch.Tensor:
    """The residuals of all ranks together, as ``flat()`` has the parameters; collective."""
    import taco_torch

    residuals = taco_torch.lightcc.state_dict(model)["residuals"].values()
    return flat([r.full_tensor() if hasattr(r, "full_tensor") else r for r in residuals])


def gradients_of(model: nn.Module) -> torch.Tensor:
    """All of them, one after the other."""
    return flat([p.grad for p in model.parameters() if p.grad is not None])


class Reference:
    """TopK with error feedback as the papers have it, for ranks on hosts of their own that send one
    bucket each step; in plain torch and float32."""

    def __init__(self, ratio: float, world: int, elements: int, momentum: float = 0.0) -> None:
        self.count = max(1, round(ratio * elements))
        self.momentum = momentum
        self.residuals = [torch.zeros(elements) for _ in range(world)]
        self.velocities = [torch.zeros(elements) for _ in range(world)]

    def step(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """The average that every rank ends with."""
        average = None
        kept = zip(self.residuals, self.velocities, strict=True)
        for (residual, velocity), gradient in zip(kept, gradients, strict=True):
            velocity.mul_(self.momentum).add_(gradient)
            residual += velocity
            largest = residual.abs().topk(self.count).indices
            sent = torch.zeros_like(residual)
            sent[largest] = residual[largest]
            residual[largest] = 0
            velocity[largest] = 0
            sent /= len(self.residuals)  # each value by itself, as there are few
            average = sent if average is None else average + sent
        assert average is not None
        return average


def dense_average(step: int, world: int, sizes: Sequence[int] = SIZES) -> torch.Tensor:
    return flat_sum(step, world, sizes) / world


def dense_sum(steps: Sequence[int], world: int, sizes: Sequence[int] = SIZES) -> torch.Tensor:
    """The sum of the averages of several steps."""
    return torch.stack([dense_average(step, world, sizes) for step in steps]).sum(0)


def flat_sum(step: int, world: int, sizes: Sequence[int] = SIZES) -> torch.Tensor:
    total = torch.zeros(sum(sizes))
    for rank in range(world):
        total += flat(chosen(step, rank, sizes))
    return total


def backward(model: DistributedDataParallel, step: int) -> torch.Tensor:
    """One step's backward pass; what the gradients are after it."""
    model.zero_grad()
    model(chosen(step, dist.get_rank(model.process_group))).backward()
    return gradients_of(model).clone()


def passes(model: DistributedDataParallel, steps: int, first: int = 0) -> Iterator[torch.Tensor]:
    for step in range(first, first + steps):
        yield backward(model, step)


def learn(model: nn.Module, max_norm: float, rate: float = 0.1) -> list[float]:
    """Losses of 60 steps with clipped gradients; the model makes one number of 20."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(dist.get_rank())
    given = torch.randn(64, 20, generator=generator)
    targets = given[:, :1] - given[:, 1:2]
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(given), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def assert_alike(tensor: torch.Tensor) -> None:
    """Bit by bit on all ranks."""
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor.contiguous())
    for row in rows:
        torch.testing.assert_close(row, rows[0], rtol=0, atol=0)
