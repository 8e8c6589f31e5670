"""The same DDP training over gloo and over taco, in turns of a few steps, in the same processes.

    torchrun --nproc-per-node 2 examples/paired_training.py

What slows the machine for a while slows both, so the ratio of two turns side by side holds where
two runs one after the other would differ. The model is one whose steps are short for the gradients
that they average: a multilayer perceptron on images of handwritten digits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from comm_timer import CommunicationTimer
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm
from train_digits import accuracy, digits, replicas_agree, shards

BACKENDS = ("gloo", "taco")
TURN_STEPS = 4
WARM_TURNS = 2  # not reported: the first steps make buckets and connections


def perceptron(width: int) -> nn.Module:
    """With 1,024: 1,126,410 parameters, which make 4.5 MB of gradients a step."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


class Training:
    """A model of its own that is averaged by one backend."""

    def __init__(self, backend: str, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.group = dist.new_group(backend=backend)
        self.model = DistributedDataParallel(perceptron(arguments.width), process_group=self.group)
        self.timer = CommunicationTimer(self.model)
        self.images, self.labels, *self.test = digits(arguments.seed)
        epochs = range(arguments.epochs)
        parts = [
            shards(len(self.labels), epoch, arguments.batch, arguments.seed) for epoch in epochs
        ]
        self.batches = [index for part in parts for index in part]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 1e-3, total_steps=len(self.batches)
        )
        self.turns: list[dict[str, float]] = []

    def take_turn(self, number: int) -> None:
        """Some steps, from the moment at which all ranks are here."""
        batches = self.batches[number * TURN_STEPS : (number + 1) * TURN_STEPS]
        dist.barrier(group=self.group)
        self.timer.busy = 0.0
        start = time.perf_counter()
        for index in batches:
            self.optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(self.model(self.images[index]), self.labels[index])
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
        seconds = time.perf_counter() - start
        self.turns.append(
            {
                "step_ms": 1e3 * seconds / len(batches),
                "communication_ms": 1e3 * self.timer.busy / len(batches),
            }
        )

    def result(self) -> dict[str, Any]:
        return {
            "accuracy": accuracy(self.model.module, *self.test),
            "replicas_identical": replicas_agree(self.model),
            "turns": self.turns[WARM_TURNS:],
        }


def averaged_by_taco() -> int:
    """Bytes of gradients that this rank has given to taco, by taco's own count."""
    import taco_torch

    algorithms = taco_torch.stats().algorithms
    return sum(each.bytes for name, each in algorithms.items() if name.startswith("all_reduce"))


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    trainings = {backend: Training(backend, arguments) for backend in arguments.backends}
    first = next(iter(trainings.values()))
    turns = len(first.batches) // TURN_STEPS
    shown = dist.get_rank() == 0 and sys.stdout.isatty()
    for number in tqdm(range(turns), disable=not shown, file=sys.stdout, ncols=78, leave=False):
        order = list(trainings.values())
        for training in order if number % 2 == 0 else reversed(order):
            training.take_turn(number)
    return {
        "world": dist.get_world_size(),
        "parameters": sum(p.numel() for p in first.model.parameters()),
        "batch": arguments.batch,
        "turn_steps": TURN_STEPS,
        "steps": turns * TURN_STEPS,
        "taco_bytes": averaged_by_taco() if "taco" in trainings else None,
        "backends": {backend: training.result() for backend, training in trainings.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs=2, default=BACKENDS, help="the baseline first")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="images per rank and step")
    parser.add_argument("--width", type=int, default=1024, help="of the hidden layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where rank 0 writes the result")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"start it with torchrun: torchrun --nproc-per-node 2 {sys.argv[0]}")
    dist.init_process_group("gloo")
    with contextlib.ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        result = train(arguments)
        if dist.get_rank() == 0 and arguments.json:
            arguments.json.write_text(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
