"""Every collective over taco beside gloo, in the same processes, turn by turn.

    python benchmarks/collectives.py                               4 ranks on this machine
    python benchmarks/collectives.py --hosts 4 --rate 1gbit --sizes 1M,40M
    python benchmarks/collectives.py --collective all_reduce --sizes 8,1K,32M --json out/x.json

Sizes follow nccl-tests: the tensor of all_reduce, broadcast and reduce; the whole output of
all_gather and gather; the whole input of reduce_scatter, scatter and (a rank's) all_to_all. A time
is the slowest rank's, from 1 MiB on after a common start. The limit is what the cables allow with
TCP's framing, or, on one machine or without a rate, what memory allows at the copying speed
measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from launch import (
    KINDS,
    TCP_FRAMING,
    add_fabric_arguments,
    deliver,
    machine,
    make_groups,
    parse_bytes,
    run,
    show_bytes,
    show_time,
)

DEFAULT_SIZES = "8,1K,32K,1M,32M"
ALL_SIZES = "8,1K,8K,32K,256K,1M,4M,16M,64M,256M"
BLOCK_S = 0.4  # how long one backend runs before the other has its turn
MAX_CALLS = 10_000  # in that time
LIMIT_FROM = 1 << 20  # below this, a memory limit says nothing: caches and latency decide


@dataclass
class Case:
    """One collective at one size, ready to run over a group."""

    run: Callable[[dist.ProcessGroup], None]
    check: Callable[[], bool]
    bytes: int


def elements(count: int, world: int, shared: bool) -> int:
    """float32 elements of `count` bytes; a multiple of the world where each rank gets a part."""
    need = max(1, count // 4)
    return max(world, need - need % world) if shared else need


def make_case(kind: str, size: int) -> Case:
    world, rank = dist.get_world_size(), dist.get_rank()
    count = elements(size, world, kind not in ("all_reduce", "broadcast", "reduce", "barrier"))
    whole, part = torch.zeros(count), torch.zeros(max(1, count // world))
    wholes, parts = list(whole.chunk(world)), part
    ops: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda g: dist.all_reduce(whole, group=g),
        "broadcast": lambda g: dist.broadcast(whole, 0, group=g),
        "reduce": lambda g: dist.reduce(whole, 0, group=g),
        "all_gather": lambda g: dist.all_gather_into_tensor(whole, part, group=g),
        "reduce_scatter": lambda g: dist.reduce_scatter_tensor(part, whole, group=g),
        "gather": lambda g: dist.gather(parts, wholes if rank == 0 else None, group=g),
        "scatter": lambda g: dist.scatter(parts, wholes if rank == 0 else None, group=g),
        "barrier": lambda g: dist.barrier(group=g),
    }
    if kind == "all_to_all":
        received = torch.zeros_like(whole)
        return Case(
            lambda g: dist.all_to_all_single(received, whole, group=g),
            _checker(kind, whole, part, received),
            count * 4,
        )
    used = 0 if kind == "barrier" else count * 4
    return Case(ops[kind], _checker(kind, whole, part, whole), used)


def _checker(
    kind: str, whole: torch.Tensor, part: torch.Tensor, received: torch.Tensor
) -> Callable[[], bool]:
    """Fills the inputs with rank + 1 on the first call, and judges the outputs on the second."""
    world, rank = dist.get_world_size(), dist.get_rank()
    total = world * (world + 1) / 2
    by_rank = torch.arange(1.0, world + 1)
    filled = False

    def check() -> bool:
        nonlocal filled
        if not filled:
            filled = True
            whole.fill_(rank + 1)
            part.fill_(rank + 1)
            return True
        every = by_rank.repeat_interleave(len(part))
        expected: dict[str, Callable[[], bool]] = {
            "all_reduce": lambda: bool((whole == total).all()),
            "broadcast": lambda: bool((whole == 1).all()),
            "reduce": lambda: rank != 0 or bool((whole == total).all()),
            "all_gather": lambda: torch.equal(whole, every),
            "gather": lambda: rank != 0 or torch.equal(whole, every),
            "reduce_scatter": lambda: bool((part == total).all()),
            "scatter": lambda: bool((part == 1).all()),
            "all_to_all": lambda: torch.equal(received, every),
            "barrier": lambda: True,
        }
        right = expected[kind]()
        # From here on zeros: sums of sums would overflow.
        for tensor in (whole, part, received):
            tensor.zero_()
        return right

    return check


def bus_factor(kind: str, world: int) -> float:
    """nccl-tests' factor: what share of the size the busiest bus carries."""
    if kind == "all_reduce":
        return 2 * (world - 1) / world
    return 1.0 if kind in ("broadcast", "reduce") else (world - 1) / world


def wire_bytes(kind: str, size: int, hosts: int, world: int) -> float:
    """Bytes the busiest host's cable must carry one way, each byte once."""
    per_host = world // hosts
    away = (hosts - 1) / hosts
    return {
        "all_reduce": 2 * away * size,
        "all_gather": away * size,
        "reduce_scatter": away * size,
        "all_to_all": per_host * size * away,
        "broadcast": size,
        "reduce": size,
        "gather": away * size,
        "scatter": away * size,
        "barrier": 0,
    }[kind]


def memory_bytes(kind: str, size: int, world: int) -> float:
    """Bytes that must be read or written at least, over all ranks."""
    return {
        "all_reduce": 2 * world * size,
        "all_gather": size + world * size,
        "reduce_scatter": world * size + size,
        "all_to_all": 2 * world * size,
        "broadcast": world * size,
        "reduce": (world + 1) * size,
        "gather": 2 * size,
        "scatter": 2 * size,
        "barrier": 0,
    }[kind]


def copy_bandwidth() -> float:
    """Bytes a second, read and written, that all ranks together copy at the same time."""
    source, target = torch.zeros(16 << 20), torch.zeros(16 << 20)
    target.copy_(source)
    best = 0.0
    for _ in range(3):
        dist.barrier()
        start = time.perf_counter()
        target.copy_(source)
        rate = torch.tensor(2 * source.nbytes / (time.perf_counter() - start))
        dist.all_reduce(rate)
        best = max(best, rate.item())
    return best


def timed_block(
    case: Case, group: dist.ProcessGroup, iterations: int, gate: dist.ProcessGroup | None
) -> list[float]:
    """The slowest rank's time of each iteration.

    With a `gate` each starts behind a barrier over it: who ended early, as ranks of a gather do,
    would else wait for the others on the clock. Without one they follow each other, and keep the
    ranks in step themselves.
    """
    # A list: to set an element of a tensor takes 11 us, for which ranks on one core would wait.
    times = [0.0] * iterations
    dist.barrier(group=group)
    for index in range(iterations):
        if gate is not None:
            dist.barrier(group=gate)
        start = time.perf_counter()
        case.run(group)
        times[index] = time.perf_counter() - start
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def measure(
    kind: str, size: int, groups: dict[str, dist.ProcessGroup], rounds: int
) -> list[dict[str, Any]]:
    samples: dict[str, list[float]] = {name: [] for name in groups}
    # Large operations start together, behind a barrier that is the same for all backends.
    gate = list(groups.values())[-1] if size >= LIMIT_FROM else None
    counts, size_used = {}, 0
    for name, group in groups.items():
        case = make_case(kind, size)
        size_used = case.bytes
        case.check()
        case.run(group)
        right = torch.tensor(int(case.check()))
        dist.all_reduce(right, dist.ReduceOp.MIN)
        if not right.item():
            raise SystemExit(f"{name}: {kind} of {show_bytes(size)} gave a wrong result")
        warm = statistics.median(timed_block(case, group, 3, gate))
        counts[name] = max(3, min(MAX_CALLS, int(BLOCK_S / warm)))
    case = make_case(kind, size)
    for _ in range(rounds):
        for name, group in groups.items():
            samples[name] += timed_block(case, group, counts[name], gate)
    rows = []
    for name, values in samples.items():
        ordered = sorted(values)
        rows.append(
            {
                "collective": kind,
                "bytes": size_used,
                "backend": name,
                "median_s": statistics.median(ordered),
                "p90_s": ordered[int(0.9 * (len(ordered) - 1))],
                "min_s": ordered[0],
                "samples": len(ordered),
            }
        )
    return rows


def add_limits(rows: list[dict[str, Any]], arguments: argparse.Namespace, bandwidth: float) -> None:
    from fabric import parse_rate

    for row in rows:
        kind, size, world = row["collective"], row["bytes"], arguments.ranks
        row["bus_gbytes_per_s"] = size / row["median_s"] * bus_factor(kind, world) / 1e9
        row["limit_s"] = None
        if arguments.rate and arguments.hosts > 1:
            bits = 8 * wire_bytes(kind, size, arguments.hosts, world) * TCP_FRAMING
            row["limit_s"], row["limit"] = bits / parse_rate(arguments.rate) or None, "wire"
        elif size >= LIMIT_FROM:
            row["limit_s"], row["limit"] = memory_bytes(kind, size, world) / bandwidth, "memory"
        if row["limit_s"] is not None:
            row["times_limit"] = row["median_s"] / row["limit_s"]


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    # 2.13 renames the *_tensor forms; the old names work from 2.11 on.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    names = arguments.backends.split(",")
    groups = make_groups(names)
    bandwidth = copy_bandwidth()
    kinds = arguments.collective.split(",") if arguments.collective else KINDS
    sizes = [parse_bytes(size) for size in arguments.sizes.split(",")]
    cases = [(kind, size) for kind in kinds for size in (sizes if kind != "barrier" else [0])]
    rows = []
    for number, (kind, size) in enumerate(cases, 1):
        if dist.get_rank() == 0:
            label = f"[{number}/{len(cases)}] {kind} {show_bytes(size)}"
            print(f"\r{label:<50}", end="", file=sys.stderr, flush=True)
        rows += measure(kind, size, groups, arguments.rounds)
    if dist.get_rank() == 0:
        print("\r" + " " * 50 + "\r", end="", file=sys.stderr, flush=True)
        add_limits(rows, arguments, bandwidth)
        deliver({"machine": machine(), "copy_bytes_per_s": bandwidth, "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    host = result["machine"]
    place = f"{arguments.hosts} hosts at {arguments.rate or 'no rate limit'}"
    where = "one host" if arguments.hosts == 1 else place
    loss = f", {arguments.loss:.1%} loss" if arguments.loss else ""
    ranks = f"{arguments.ranks} {'unbound ' if arguments.unbound else ''}ranks"
    title = f"{ranks}, {where}{loss}; {host['cores']} cores, TCP {host['tcp']}"
    table = Table(title=f"{title}, copying {result['copy_bytes_per_s'] / 1e9:.1f} GB/s")
    for heading in ("collective", "size"):
        table.add_column(heading)
    names = arguments.backends.split(",")
    for name in names:
        for heading in ("median", "p90", "bus GB/s"):
            table.add_column(f"{name} {heading}", justify="right")
    table.add_column("limit", justify="right")
    table.add_column(f"{names[-1]}/limit", justify="right")
    if len(names) > 1:
        table.add_column(f"{names[0]}/{names[-1]}", justify="right")
    groups: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["collective"], row["bytes"]), {})[row["backend"]] = row
    for (kind, size), by_name in groups.items():
        cells = [kind, show_bytes(size)]
        for name in names:
            row = by_name[name]
            cells += [show_time(row["median_s"]), show_time(row["p90_s"])]
            cells.append(f"{row['bus_gbytes_per_s']:.2f}")
        last = by_name[names[-1]]
        cells.append(show_time(last["limit_s"]))
        cells.append(f"{last['times_limit']:.2f}" if last["limit_s"] else "-")
        if len(names) > 1:
            cells.append(f"{by_name[names[0]]['median_s'] / last['median_s']:.2f}x")
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def plot(result: dict[str, Any], path: Path) -> None:
    """Time against size, one panel a collective, one line a backend, the limit dashed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in result["rows"] if row["bytes"]]
    kinds = list(dict.fromkeys(row["collective"] for row in rows))
    columns = min(4, len(kinds))
    lines = -(-len(kinds) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 3 * lines), squeeze=False, layout="constrained"
    )
    for panel in axes.flat[len(kinds) :]:
        panel.set_visible(False)
    for panel, kind in zip(axes.flat, kinds, strict=False):
        mine = [row for row in rows if row["collective"] == kind]
        for name in dict.fromkeys(row["backend"] for row in mine):
            points = [
                (row["bytes"], row["median_s"] * 1e3) for row in mine if row["backend"] == name
            ]
            panel.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        limits = {row["bytes"]: row["limit_s"] * 1e3 for row in mine if row["limit_s"]}
        if limits:
            panel.loglog(limits.keys(), limits.values(), "k--", linewidth=0.8, label="limit")
        panel.set_title(kind, fontsize=9)
        panel.set_xlabel("bytes")
        panel.set_ylabel("ms")
        panel.legend(fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser)
    parser.add_argument("--backends", default="gloo,taco", help="baseline first")
    parser.add_argument("--transport", choices=["auto", "shm", "udp"], default="auto")
    parser.add_argument("--collective", help=f"of {','.join(KINDS)}; default: all")
    parser.add_argument("--sizes", default=DEFAULT_SIZES, help=f"default {DEFAULT_SIZES}")
    parser.add_argument("--full", action="store_true", help=f"sizes {ALL_SIZES}")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each backend")
    parser.add_argument("--plot", type=Path, help="save a plot here")
    arguments = parser.parse_args()
    if arguments.full:
        arguments.sizes = ALL_SIZES
    result = run(__file__, arguments, rank_main, show, TACO_TRANSPORT=arguments.transport)
    if result and arguments.plot:
        plot(result, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
