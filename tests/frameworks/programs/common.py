"""Shared by the programs: a small model, data of each rank's own, and the report at the end."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

# Before there is a group: its functions keep the group they find when DDP imports it, for ever.
import torch.distributed.nn

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "taco"
STEPS = 8
BATCH = 16


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))


def data(samples: int = STEPS * BATCH * 2) -> torch.utils.data.TensorDataset:
    """The same on all ranks; a distributed sampler deals it out."""
    random = torch.Generator().manual_seed(2)
    inputs = torch.randn(samples, 20, generator=random)
    return torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1))


def batches(rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    inputs, targets = data().tensors
    mine = slice(rank, None, world)
    return list(zip(inputs[mine].split(BATCH), targets[mine].split(BATCH), strict=True))


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, target)


def taco_calls() -> int:
    """How many collectives this process has run over taco."""
    if BACKEND != "taco":
        return 0
    import taco_torch

    return sum(entry.calls for entry in taco_torch.stats().algorithms.values())


def report(losses: list[float], weights: torch.Tensor, backend: str = "") -> None:
    """One line of JSON a rank, for the test: losses and weights to the last bit."""
    line = {
        "rank": int(os.environ.get("RANK", "0")),
        "backend": backend or dist.get_backend(),
        "losses": [loss.hex() for loss in losses],
        "weights": float(weights.detach().double().sum()).hex(),
        "calls": taco_calls(),
    }
    # In one piece, its end included: the ranks share one pipe.
    os.write(1, f"REPORT {json.dumps(line)}\n".encode())
    if BACKEND == "gloo" and "ray" not in sys.modules:
        # It is only compared with, and the destructor of its group, run by whoever keeps that
        # beyond destroy_process_group(), may wait for a thread that waits for the interpreter.
        os._exit(0)
