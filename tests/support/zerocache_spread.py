"""Models whose parameters are spread over the ranks of a job. Test support."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from zerocache_models import make_cache
from zerocache_ranks import adamw

# Pages; a stripe has one of each rank.
CAPS = (32, 24, 400)


def sharded(
    folder: str,
    model: nn.Module,
    make: Any = adamw,
    caps: tuple[int, int, int] = CAPS,
    **options: Any,
) -> tuple[Any, Any, Any]:
    cache = make_cache(Path(folder) / f"sharded-{dist.get_rank()}", *caps)
    return cache, *cache.wrap(model, make(model), shard_parameters=True, **options)


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            mean = parameter.grad.float()
            dist.all_reduce(mean)
            parameter.grad = (mean / dist.get_world_size()).to(parameter.grad.dtype)
