"""Training steps of a GPT that is spread over ranks: a ZeroCache beside FSDP2, and DDP for which
each rank has all of it in memory.

    python benchmarks/zerocache_sharded.py --hosts 2 --rate 10gbit
    python benchmarks/zerocache_sharded.py --ranks 2 --directory out/zerocache

All of them go over the backend taco; AdamW; the same batches. With "all in memory" the caps hold
what a rank keeps and what is gathered; "on disk" has a quarter of that as memory, and the rest
under `--directory`. Every training is a job of its own; they take turns, and a ratio is the median
over rounds of ratios inside one round. The memory is the most that a rank took on top of what it
had before it made the model. DDP's step is no limit, but what ranks take that have memory enough:
its gradients travel once, while a model that is spread travels twice more. Two choices more have
all parameters on every rank, under DDP, and share the optimizer's state: with steps at the end, and
in the backward pass.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from launch import (
    RESULT,
    add_fabric_arguments,
    bind,
    deliver,
    is_rank,
    launch,
    machine,
    make_groups,
    save,
    show_time,
    where,
)
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from zerocache_training import EXAMPLES, VOCABULARY

CHOICE = "BENCHMARK_CHOICE"
WARM_UP = 3
Trained = tuple[nn.Module, torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def with_ddp(model: nn.Module, _: argparse.Namespace) -> Trained:
    return DistributedDataParallel(model), adamw(model)


def with_fsdp2(model: nn.Module, _: argparse.Namespace) -> Trained:
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, adamw(model)


def parameter_bytes(model: nn.Module) -> int:
    return 4 * sum(parameter.numel() for parameter in model.parameters())


def with_ddp_in_cache(
    model: nn.Module, arguments: argparse.Namespace, in_backward: bool
) -> Trained:
    from taco_torch.zerocache import ZeroCache

    whole = parameter_bytes(model)
    cache = ZeroCache(device=2 * whole, host=2 * whole, page=arguments.page)
    ddp = DistributedDataParallel(model)
    made, optimizer = cache.wrap(ddp, adamw(ddp), step_in_backward=in_backward)
    return made, optimizer


def with_cache(model: nn.Module, arguments: argparse.Namespace, on_disk: bool) -> Trained:
    from taco_torch.zerocache import ZeroCache

    # Parameters and two moments; the largest module is the embedding, gathered whole.
    share = 3 * parameter_bytes(model) // dist.get_world_size()
    largest = 4 * max(parameter.numel() for parameter in model.parameters())
    directory = f"{arguments.directory}/rank-{dist.get_rank()}"
    os.makedirs(directory, exist_ok=True)
    cache = ZeroCache(
        device=2 * largest + (0 if on_disk else share // 3),
        host=share // 4 if on_disk else 2 * share,
        ssd=f"{directory}:{2 * share >> 20}MiB" if on_disk else None,
        page=arguments.page,
    )
    model, optimizer = cache.wrap(model, adamw(model), shard_parameters=True)
    return model, optimizer


CHOICES: dict[str, Callable[[nn.Module, argparse.Namespace], Trained]] = {
    "DDP": with_ddp,
    "FSDP2": with_fsdp2,
    "ZeroCache, all in memory": lambda model, given: with_cache(model, given, False),
    "ZeroCache, on disk": lambda model, given: with_cache(model, given, True),
    "DDP, state in ZeroCache": lambda model, given: with_ddp_in_cache(model, given, False),
    "DDP, stepped in backward": lambda model, given: with_ddp_in_cache(model, given, True),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> float:
    loss = functional.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def train(arguments: argparse.Namespace) -> None:
    """In a rank: rank 0 delivers the slowest rank's seconds, all ranks' peak and the losses."""
    sys.path.append(str(EXAMPLES))
    from train_large_lm import LanguageModel, memory_of_process

    torch.set_num_threads(1)
    make_groups(["taco"])
    torch.manual_seed(0)
    before, _ = memory_of_process()
    model, optimizer = CHOICES[os.environ[CHOICE]](LanguageModel(VOCABULARY, arguments), arguments)
    seconds, losses = [], []
    for index in range(WARM_UP + arguments.steps):
        random = torch.Generator().manual_seed(index * dist.get_world_size() + dist.get_rank())
        batch = arguments.tokens // arguments.context, arguments.context + 1
        tokens = torch.randint(VOCABULARY, batch, generator=random)
        dist.barrier()
        began = time.perf_counter()
        losses.append(step(model, optimizer, tokens))
        seconds.append(time.perf_counter() - began)
    worst = torch.tensor([*seconds[WARM_UP:], memory_of_process()[1] - before])
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        *slowest, peak = worst.tolist()
        deliver({"seconds": slowest, "peak": peak, "losses": losses, "machine": machine()})
    dist.barrier()
    dist.destroy_process_group()


def show(results: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"A GPT spread over ranks, {where(arguments)}")
    for heading in ("", "step", "to DDP's", "memory of a rank", "last loss"):
        table.add_column(heading, justify="right")
    medians = {
        title: [statistics.median(one["seconds"]) for one in rounds]
        for title, rounds in results.items()
    }
    first = next(iter(medians))
    for title, rounds in results.items():
        pairs = zip(medians[title], medians[first], strict=True)
        table.add_row(
            title,
            show_time(statistics.median(medians[title])),
            f"{statistics.median(own / base for own, base in pairs):.2f}x",
            f"{max(one['peak'] for one in rounds) / 1e6:,.0f} MB",
            f"{rounds[-1]['losses'][-1]:.5f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser, ranks=2)
    parser.add_argument("--directory", default=None, help="for pages on disk; default: temporary")
    parser.add_argument("--only", help="choices, separated by semicolons; the first is DDP")
    parser.add_argument("--page", default="1MiB", help="of the cache")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=512, help="a step and rank")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    titles = arguments.only.split(";") if arguments.only else list(CHOICES)
    unknown = [title for title in titles if title not in CHOICES]
    if unknown:
        parser.error(f"--only: unknown: {'; '.join(unknown)}; of {'; '.join(CHOICES)}")
    if is_rank():
        if not arguments.unbound:
            bind(int(os.environ["RANK"]))
        arguments.directory = arguments.directory or f"{Path(os.environ[RESULT]).parent}/pages"
        train(arguments)
        return 0
    results: dict[str, list[dict[str, Any]]] = {title: [] for title in titles}
    for _ in range(arguments.rounds):
        for title in titles:
            print(f"{title} ...", file=sys.stderr, flush=True)
            results[title].append(launch(__file__, arguments, **{CHOICE: title}))
    show(results, arguments)
    save(results, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
