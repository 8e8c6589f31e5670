"""A DDP step with the gradients of real models and emulated computation, over taco beside gloo.

    python benchmarks/ddp_step.py --hosts 4 --rate 1gbit
    python benchmarks/ddp_step.py --hosts 2 --rate 1gbit --models resnet50 --compute 0.4

For each layer the backward pass sleeps according to the layer's share of the computation, since a
GPU would leave the CPU idle. Gradients become ready layer by layer, the last layer first, and DDP's
own buckets carry them. The forward pass, which nothing can overlap, takes no time here: this
measures the backward pass with its communication. The goal is max(compute, wire time) + the wire
time of the last bucket. "compute" is the same pass without communication (`no_sync`), measured in
the same run, since handing over the gradients costs processor time here.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: train_digits.py says why
from emulated import MODELS, Emulated, buckets
from fabric import parse_rate
from launch import (
    TCP_FRAMING,
    add_fabric_arguments,
    measure_models,
    run,
    show_time,
    where,
)
from torch.nn.parallel import DistributedDataParallel

# Seconds of backward computation: as long as the all-reduce over 4 hosts at 1 Gbit/s takes,
# where overlap matters most. --compute sets another.
BALANCED = {"resnet50": 1.3, "vgg16": 6.9, "gpt2": 6.2}


def steps(model: DistributedDataParallel, count: int, synchronize: bool) -> list[float]:
    """The slowest rank's time of each step, from a common start."""
    times = torch.empty(count, dtype=torch.float64)
    one = torch.ones(1, requires_grad=True)
    for index in range(count):
        dist.barrier()
        start = time.perf_counter()
        with contextlib.nullcontext() if synchronize else model.no_sync():
            model(one).backward()
        times[index] = time.perf_counter() - start
        model.zero_grad(set_to_none=False)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def measure(name: str, arguments: argparse.Namespace, groups: dict[str, Any]) -> dict[str, Any]:
    layers = [layer.flat() for layer in MODELS[name]()]
    gradient_bytes = 4 * sum(layer.size for layer in layers)
    seconds = arguments.compute or BALANCED[name]
    alone: list[float] = []
    samples: dict[str, list[float]] = {backend: [] for backend in groups}
    for _ in range(arguments.rounds):
        for backend, group in groups.items():
            model = DistributedDataParallel(
                Emulated(layers, seconds),
                process_group=group,
                gradient_as_bucket_view=True,
            )
            samples[backend] += steps(model, arguments.steps + 2, True)[2:]  # rebuilds buckets
            alone += steps(model, 2, False)
            del model
    compute = statistics.median(alone)
    row: dict[str, Any] = {"model": name, "compute_s": compute, "gradient_bytes": gradient_bytes}
    row["step_s"] = {backend: statistics.median(times) for backend, times in samples.items()}
    if arguments.rate:
        factor = 2 * (arguments.hosts - 1) / arguments.hosts * 8 * TCP_FRAMING
        factor /= parse_rate(arguments.rate)
        row["wire_s"] = gradient_bytes * factor
        row["goal_s"] = max(compute, row["wire_s"]) + buckets(layers)[-1].bytes * factor
    return row


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    names = arguments.backends.split(",")
    table = Table(title=f"DDP step, {where(arguments)}; TCP {result['machine']['tcp']}")
    for heading in ("model", "gradients", "compute", "wire time"):
        table.add_column(heading, justify="right")
    for name in names:
        table.add_column(f"{name} step", justify="right")
    for heading in ("goal", f"{names[-1]}/goal", f"{names[0]}/{names[-1]}"):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        step, goal = row["step_s"], row.get("goal_s")
        last = step[names[-1]]
        cells = [row["model"], f"{row['gradient_bytes'] / 1e6:.0f} MB", show_time(row["compute_s"])]
        cells += [show_time(row.get("wire_s")), *(show_time(step[name]) for name in names)]
        cells += [show_time(goal), f"{last / goal:.2f}" if goal else "-"]
        table.add_row(*cells, f"{step[names[0]] / last:.2f}x")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser)
    parser.add_argument("--backends", default="gloo,taco", help="baseline first")
    parser.add_argument("--models", default=",".join(BALANCED))
    parser.add_argument(
        "--compute", type=float, help="seconds of the backward pass; default: balanced"
    )
    parser.add_argument("--steps", type=int, default=4, help="a round and backend")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    run(__file__, arguments, partial(measure_models, measure=measure), show)
    return 0


if __name__ == "__main__":
    sys.exit(main())
