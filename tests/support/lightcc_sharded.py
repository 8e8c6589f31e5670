"""Models of fully_shard whose gradients a test chooses, on four ranks of two hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightcc_models import SIZES, Bag, chosen, flat
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

WORLD = 4


def ranks_of_two_hosts(environment: dict[str, str] | None = None) -> Ranks:
    """Two ranks on each of two hosts, which are this one under two names."""
    own = [{"TACO_HOST_ID": f"sharded-{rank // 2}"} for rank in range(WORLD)]
    return Ranks(WORLD, {"TACO_LOG": "warning", **(environment or {})}, own=own).initialise()


def line() -> DeviceMesh:
    """Every rank has a shard of its own."""
    return init_device_mesh("cpu", (WORLD,))


def square() -> DeviceMesh:
    """Two replicas of two shards: a replica is a host."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def sharded_bag(mesh: DeviceMesh, sizes: Sequence[int] = SIZES, **options: Any) -> nn.Module:
    model = Bag(sizes)
    fully_shard(model, mesh=mesh, **options)
    return model


class Bags(nn.Module):
    """Two bags in a row, each reduced by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Bag(SIZES[:2])
        self.second = Bag(SIZES[2:])

    def forward(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        loss: torch.Tensor = self.first(gradients[:2]) + self.second(gradients[2:])
        return loss


def sharded_bags(mesh: DeviceMesh, **options: Any) -> nn.Module:
    model = Bags()
    fully_shard(model.first, mesh=mesh, **options)
    fully_shard(model.second, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def whole_gradients(model: nn.Module) -> torch.Tensor:
    """Those of all parameters one after the other; zeros where there is none."""
    parts = []
    for parameter in model.parameters():
        gradient = parameter.grad
        whole = torch.zeros(parameter.shape) if gradient is None else gradient.full_tensor()
        parts.append(whole.float())
    return flat(parts)


def backward(model: nn.Module, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
    model.zero_grad()
    model(gradients).backward()
    return whole_gradients(model)


def passes(model: nn.Module, steps: int, first: int = 0) -> Iterator[torch.Tensor]:
    for step in range(first, first + steps):
        yield backward(model, chosen(step, dist.get_rank()))


def whole_numbers(
    step: int, rank: int, sizes: Sequence[int] = SIZES, unused: Sequence[int] = ()
) -> list[torch.Tensor | None]:
    """Gradients whose sums, averages and differences float32 holds exactly."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    drawn = [torch.randint(-100, 101, (n,), generator=generator).float() for n in sizes]
    return [None if index in unused else values for index, values in enumerate(drawn)]


def average_of_whole_numbers(step: int, unused: Sequence[int] = ()) -> torch.Tensor:
    total = torch.zeros(sum(SIZES))
    for rank in range(WORLD):
        values = whole_numbers(step, rank, unused=unused)
        total += flat(
            [torch.zeros(n) if v is None else v for v, n in zip(values, SIZES, strict=True)]
        )
    return total / WORLD


def top_k(model: nn.Module, ratio: float = 0.02, **options: Any) -> nn.Module:
    import taco_torch

    taco_torch.lightcc.compress(model, "topk", ratio=ratio, threshold=0, **options)
    return model


def bag() -> nn.Module:
    return sharded_bag(square())


def bags() -> nn.Module:
    return sharded_bags(square())


def replicas_only() -> nn.Module:
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard"))
    return sharded_bag(mesh)


def coded_bytes() -> int:
    """Bytes of coded gradients so far, on all ranks."""
    import taco_torch

    total = torch.tensor([taco_torch.stats().lightcc.bytes_before])
    dist.all_reduce(total)
    return int(total)
