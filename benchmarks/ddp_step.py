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
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from fabric import parse_rate
from launch import (
    TCP_FRAMING,
    add_fabric_arguments,
    deliver,
    machine,
    make_groups,
    run,
    show_time,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 25  # DDP's default


# A layer: its parameters, and how many positions of the input each is applied to. Their product
# is its share of the computation.
Layer = tuple[int, int]


def resnet50() -> list[Layer]:
    """25.6 million parameters, growing towards the end while the image shrinks."""
    layers = [(9_408 + 128, 112 * 112)]
    stages = ((64, 3, 64, 56), (128, 4, 256, 28), (256, 6, 512, 14), (512, 3, 1024, 7))
    for width, blocks, stage_in, side in stages:
        for block in range(blocks):
            inputs = stage_in if block == 0 else 4 * width
            convolutions = inputs * width + 9 * width * width + 4 * width * width
            shortcut = inputs * 4 * width if block == 0 else 0
            layers.append((convolutions + shortcut + 12 * width, side * side))
    return [*layers, (2048 * 1000 + 1000, 1)]


def vgg16() -> list[Layer]:
    """138 million parameters, three quarters of them in one layer near the end."""
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    sides = [224, 224, 112, 112, 56, 56, 56, 28, 28, 28, 14, 14, 14]
    layers = [
        (9 * a * b + b, side * side) for (a, b), side in zip(pairwise(channels), sides, strict=True)
    ]
    dense = [25088 * 4096 + 4096, 4096 * 4096 + 4096, 4096 * 1000 + 1000]
    return [*layers, *((size, 1) for size in dense)]


def gpt2() -> list[Layer]:
    """GPT-2 small: 124 million parameters; the embedding, also the head, has its gradient last."""
    width, tokens = 768, 1024
    block = 12 * width * width + 13 * width
    return [(50257 * width + 1024 * width, tokens)] + [(block, tokens)] * 12


MODELS = {"resnet50": resnet50, "vgg16": vgg16, "gpt2": gpt2}
# Seconds of backward computation: as long as the all-reduce over 4 hosts at 1 Gbit/s takes,
# where overlap matters most. --compute sets another.
BALANCED = {"resnet50": 1.3, "vgg16": 6.9, "gpt2": 6.2}


class Sleep(torch.autograd.Function):
    """Identity whose backward takes `seconds`, as a layer's computation on a device would."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, seconds: float) -> Any:
        context.seconds = seconds
        context.save_for_backward(weight)
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        (weight,) = context.saved_tensors
        time.sleep(context.seconds)
        # One zero, seen as many: making gradients shall cost the CPU as little as a GPU would.
        return gradient, torch.zeros(1).expand_as(weight), None


class Emulated(nn.Module):
    """Layers of given sizes whose backward passes take `compute` seconds together."""

    def __init__(self, layers: list[Layer], compute: float) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size, _ in layers)
        work = [size * positions for size, positions in layers]
        self.backward_s = [compute * share / sum(work) for share in work]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, seconds in zip(self.layers, self.backward_s, strict=True):
            x = Sleep.apply(x, weight, seconds)
        return x.sum()


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


def bucket_bytes(sizes: list[int]) -> list[int]:
    """DDP's buckets in the order in which they become ready: full at BUCKET_MB, the first at 1."""
    buckets, open_bytes, limit = [], 0, 1 << 20
    for size in reversed(sizes):
        open_bytes += 4 * size
        if open_bytes >= limit:
            buckets.append(open_bytes)
            open_bytes, limit = 0, BUCKET_MB << 20
    return [*buckets, open_bytes] if open_bytes else buckets


def measure(name: str, arguments: argparse.Namespace, groups: dict[str, Any]) -> dict[str, Any]:
    layers = MODELS[name]()
    sizes = [size for size, _ in layers]
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
            samples[backend] += steps(model, arguments.steps + 2, True)[2:]  # buckets settle first
            alone += steps(model, 2, False)
            del model
    compute = statistics.median(alone)
    row: dict[str, Any] = {"model": name, "compute_s": compute, "gradient_bytes": 4 * sum(sizes)}
    row["step_s"] = {backend: statistics.median(times) for backend, times in samples.items()}
    if arguments.rate:
        factor = 2 * (arguments.hosts - 1) / arguments.hosts * 8 * TCP_FRAMING
        factor /= parse_rate(arguments.rate)
        row["wire_s"] = 4 * sum(sizes) * factor
        row["goal_s"] = max(compute, row["wire_s"]) + bucket_bytes(sizes)[-1] * factor
    return row


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    names = arguments.backends.split(",")
    groups = make_groups(names)
    rows = []
    for model in arguments.models.split(","):
        if dist.get_rank() == 0:
            print(f"{model} ...", file=sys.stderr, flush=True)
        rows.append(measure(model, arguments, groups))
    if dist.get_rank() == 0:
        deliver({"machine": machine(), "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    names = arguments.backends.split(",")
    hosts = "one host" if arguments.hosts == 1 else f"{arguments.hosts} hosts"
    place = f"{arguments.ranks} ranks, {hosts}, {arguments.rate or 'no rate limit'}"
    table = Table(title=f"DDP step, {place}; TCP {result['machine']['tcp']}")
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
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument(
        "--compute", type=float, help="seconds of the backward pass; default: balanced"
    )
    parser.add_argument("--steps", type=int, default=4, help="a round and backend")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    run(__file__, arguments, rank_main, show)
    return 0


if __name__ == "__main__":
    sys.exit(main())
