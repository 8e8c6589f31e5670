"""An FSDP2 step with the gradients of real models and emulated computation, over taco beside gloo.

    python benchmarks/fsdp_step.py --hosts 4 --rate 1gbit
    python benchmarks/fsdp_step.py --hosts 2 --rate 1gbit --models resnet50 --compute 0.4

Every layer is a module of fully_shard: its parameters are gathered before its forward pass and, as
they were given up after it, once more before its backward pass, which then scatters its gradients.
As in ddp_step.py the backward pass sleeps according to each layer's share of the computation, and
the forward pass takes no time. So nothing hides the first gathering; the second and the gradients
(half as long in 16 bits) can hide behind the backward pass, but for the gradient that comes last.
That is the limit. Choices take turns.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from emulated import MODELS, Compute, Gradients, Layer, compute_shares
from fabric import parse_rate
from launch import (
    TCP_FRAMING,
    add_fabric_arguments,
    measure_models,
    run,
    show_time,
    where,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

# Seconds of backward computation: about as long as its communication with 4 hosts at 1 Gbit/s.
BALANCED = {"resnet50": 1.3, "bert": 5.5}
# Backend and compression, by title.
CHOICES = {
    "gloo": ("gloo", None),
    "taco": ("taco", None),
    "taco, float16": ("taco", "float16"),
}


class Backward(torch.autograd.Function):
    """Identity whose backward takes a layer's time and yields its gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, layer: ShardedLayer, weight: torch.Tensor) -> Any:
        context.layer = layer
        context.save_for_backward(weight)
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        context.layer.compute.pass_by(context.layer.seconds)
        (weight,) = context.saved_tensors
        return gradient, None, context.layer.gradients.like(weight)


class ShardedLayer(nn.Module):
    def __init__(
        self, layer: Layer, seconds: float, compute: Compute, gradients: Gradients
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layer.size))
        self.seconds, self.compute, self.gradients = seconds, compute, gradients

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Backward.apply(x, self, self.weight)
        return made


def sharded_model(
    layers: Sequence[Layer],
    seconds: float,
    compute: Compute,
    group: dist.ProcessGroup,
    compression: str | None,
) -> nn.Module:
    gradients = Gradients(max(layer.size for layer in layers), dist.get_rank())
    shares = compute_shares(layers)
    model = nn.Sequential(
        *(
            ShardedLayer(layer, seconds * share, compute, gradients)
            for layer, share in zip(layers, shares, strict=True)
        )
    )
    mesh = DeviceMesh.from_group(group, "cpu")
    for module in model:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if compression:
        from taco_torch import lightcc

        lightcc.compress(model, compression)
    return model


def steps(model: nn.Module, compute: Compute, count: int) -> list[float]:
    """The slowest rank's time of each step, from a common start."""
    times = torch.empty(count, dtype=torch.float64)
    one = torch.ones(1, requires_grad=True)
    for index in range(count):
        dist.barrier()
        start = time.perf_counter()
        made = model(one).sum()
        compute.start()
        made.backward()
        times[index] = time.perf_counter() - start
        model.zero_grad()
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return times.tolist()


def step_limit(
    layers: Sequence[Layer], seconds: float, seconds_per_byte: float, compression: str | None
) -> float:
    scattered = 0.5 if compression else 1.0
    once = 4 * sum(layer.size for layer in layers) * seconds_per_byte
    last = 4 * layers[0].size * seconds_per_byte * scattered
    return once + max(seconds + last, (1 + scattered) * once)


def measure(name: str, arguments: argparse.Namespace, groups: dict[str, Any]) -> dict[str, Any]:
    layers = [layer.flat() for layer in MODELS[name]()]
    parameter_bytes = 4 * sum(layer.size for layer in layers)
    seconds = arguments.compute or BALANCED[name]
    titles = [title for title, (backend, _) in CHOICES.items() if backend in groups]
    samples: dict[str, list[float]] = {title: [] for title in titles}
    for _ in range(arguments.rounds):
        for title in titles:
            gc.collect()  # models of earlier turns lie in cycles
            backend, compression = CHOICES[title]
            compute = Compute()
            model = sharded_model(layers, seconds, compute, groups[backend], compression)
            samples[title] += steps(model, compute, arguments.steps + 1)[1:]
            del model
    row: dict[str, Any] = {"model": name, "compute_s": seconds, "parameter_bytes": parameter_bytes}
    row["step_s"] = {title: statistics.median(times) for title, times in samples.items()}
    if arguments.rate:
        factor = (arguments.hosts - 1) / arguments.hosts * 8 * TCP_FRAMING
        factor /= parse_rate(arguments.rate)
        row["limit_s"] = {
            title: step_limit(layers, seconds, factor, CHOICES[title][1]) for title in titles
        }
    return row


def table_cells(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for row in rows:
        first = next(iter(row["step_s"]))
        for title, step in row["step_s"].items():
            head = [row["model"], f"{row['parameter_bytes'] / 1e6:.0f} MB"]
            head.append(show_time(row["compute_s"]))
            limit = row["limit_s"][title] if "limit_s" in row else None
            cells = [*(head if title == first else [""] * 3), title, show_time(step)]
            cells += [show_time(limit), f"{step / limit:.2f}" if limit else "-"]
            yield [*cells, f"{row['step_s'][first] / step:.2f}x"]


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"FSDP2 step, {where(arguments)}; TCP {result['machine']['tcp']}")
    titles = list(result["rows"][0]["step_s"])
    headings = ["model", "parameters", "compute", "choice", "step", "limit", "step/limit"]
    for heading in [*headings, f"{titles[0]}/step"]:
        table.add_column(heading, justify="right")
    for cells in table_cells(result["rows"]):
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser)
    parser.add_argument("--backends", default="gloo,taco", help="baseline first")
    parser.add_argument("--models", default=",".join(BALANCED))
    parser.add_argument(
        "--compute", type=float, help="seconds of the backward pass; default: balanced"
    )
    parser.add_argument("--steps", type=int, default=3, help="a round and choice")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.models.split(",") if name not in MODELS]
    if unknown:
        parser.error(f"--models: unknown: {', '.join(unknown)}; of {','.join(MODELS)}")
    run(__file__, arguments, partial(measure_models, measure=measure), show)
    return 0


if __name__ == "__main__":
    sys.exit(main())
