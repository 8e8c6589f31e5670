"""SyncBatchNorm normalises the batches of all ranks as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from horovod_ranks import raises
from spawn_ranks import Ranks
from torch import nn

import taco_torch.horovod as hvd

SHAPE = (3, 4)
ROWS = (2, 1, 5)  # of each rank's batch


def batches(extra: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    whole = torch.randn(sum(ROWS), 3, *extra, generator=generator, dtype=torch.float64) * 3 + 50
    return list(whole.split(ROWS))


def normalises(extra: tuple[int, ...], options: dict[str, Any]) -> None:
    rank = hvd.rank()
    parts = batches(extra)
    whole = torch.cat(parts).requires_grad_()
    kind = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[len(extra)]
    alone, ours = kind(3, **options).double(), hvd.SyncBatchNorm(3, **options).double()
    mine = parts[rank].clone().requires_grad_()
    factors = torch.arange(whole.numel(), dtype=torch.float64).view(whole.shape).cos()
    own = slice(sum(ROWS[:rank]), sum(ROWS[: rank + 1]))
    for _ in range(2):
        wanted, found = alone(whole), ours(mine)
        assert torch.allclose(found, wanted[own])
    (wanted * factors).sum().backward()
    (found * factors[own]).sum().backward()
    assert whole.grad is not None
    assert torch.allclose(mine.grad, whole.grad[own])  # type: ignore[arg-type]
    if options.get("affine", True):
        for name in ("weight", "bias"):
            total = hvd.allreduce(getattr(ours, name).grad, op=hvd.Sum)
            assert torch.allclose(total, getattr(alone, name).grad), name
    if options.get("track_running_stats", True):
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.allclose(getattr(ours, name), getattr(alone, name)), name
    alone.eval()
    ours.eval()
    assert torch.allclose(ours(mine), alone(whole)[own])


@pytest.mark.parametrize(
    ("extra", "options"),
    [
        ((), {}),
        ((4,), {"momentum": None}),
        ((4, 2), {"affine": False}),
        ((2, 2, 2), {"momentum": 0.3, "eps": 1e-3}),
    ],
    ids=str,
)
def test_as_one_batch(hvd3: Ranks, extra: tuple[int, ...], options: dict[str, Any]) -> None:
    hvd3.run(normalises, extra, options)


def in_half() -> None:
    layer = hvd.SyncBatchNorm(2)
    output = layer(torch.randn(4, 2, 3).to(torch.bfloat16))
    assert output.dtype == torch.bfloat16
    raises(ValueError, lambda: layer(torch.ones(3)), "(N, C, ...)")


def test_inputs_of_16_bits_and_of_one_dimension(hvd3: Ranks) -> None:
    hvd3.run(in_half)
