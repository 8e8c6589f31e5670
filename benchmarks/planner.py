"""Is the planner's choice the fastest algorithm? Compares every algorithm with it in one run.

    python benchmarks/planner.py [--transport udp] [--collective all_reduce] [--sizes 8,1M]

Each algorithm has a group of its own that forces it (``taco_torch.Options(algorithm=...)``). They
take turns, so that whatever else the machine does disturbs all alike. The ratio is the median over
the turns of the ratio within a turn. A ratio of 1 means that the choice is the best; one a little
below 1 shows how much turns differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from collectives import Case, make_case, timed_block
from launch import (
    add_fabric_arguments,
    deliver,
    machine,
    parse_bytes,
    run,
    show_bytes,
    show_time,
)

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
DEFAULT_SIZES = "8,1K,16K,128K,1M,8M,64M"
BLOCK_S = 0.02  # one algorithm's turn
GOAL = 1.1


def groups_by_algorithm(kinds: list[str]) -> dict[str, list[dist.ProcessGroup]]:
    """By collective, a group for each of its algorithms, in taco's order. The n-th algorithms of
    all collectives share a group."""
    import taco_torch
    from taco_torch import _C

    known = {kind: _C.known_algorithms()[kind] for kind in kinds}
    shared = []
    for number in range(max(map(len, known.values()))):
        forced = [f"{kind}={names[number]}" for kind, names in known.items() if number < len(names)]
        options = taco_torch.Options(algorithm=",".join(forced))
        shared.append(dist.new_group(backend="taco", pg_options=options))
    return {kind: shared[: len(names)] for kind, names in known.items()}


def chosen(kind: str, case: Case, group: dist.ProcessGroup | None) -> str | None:
    """The algorithm that runs the case, or None where the forced one does not fit."""
    import taco_torch

    before = taco_torch.stats()
    try:
        case.run(group)
    except ValueError:
        return None
    done = (taco_torch.stats() - before).algorithms
    return next(name.split("/")[1] for name in done if name.split("/")[0] == kind)


def measure(
    kind: str, size: int, groups: list[dist.ProcessGroup], rounds: int
) -> dict[str, Any] | None:
    case = make_case(kind, size)
    world = dist.group.WORLD
    choice = chosen(kind, case, world)
    fitting = {}
    for group in groups:
        name = chosen(kind, case, group)
        if name is not None:
            fitting[name] = group
    assert choice in fitting
    counts = {}
    for name, group in fitting.items():
        warm = statistics.median(timed_block(case, group, 3, world))
        counts[name] = max(2, min(200, int(BLOCK_S / warm)))
    turns: dict[str, list[float]] = {name: [] for name in fitting}
    for turn in range(rounds):
        names = list(fitting) if turn % 2 else list(fitting)[::-1]
        for name in names:
            block = timed_block(case, fitting[name], counts[name], world)
            turns[name].append(statistics.median(block))
    times = {name: statistics.median(values) for name, values in turns.items()}
    best = min(times, key=lambda name: times[name])
    ratio = statistics.median(
        mine / theirs for mine, theirs in zip(turns[choice], turns[best], strict=True)
    )
    return {
        "collective": kind,
        "bytes": case.bytes,
        "choice": choice,
        "best": best,
        "ratio": ratio,
        "times_s": times,
    }


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    import taco_torch

    dist.init_process_group("taco")
    kinds = arguments.collective.split(",") if arguments.collective else KINDS
    groups = groups_by_algorithm(kinds)
    sizes = [parse_bytes(size) for size in arguments.sizes.split(",")]
    rows = []
    for kind in kinds:
        for size in sizes:
            if dist.get_rank() == 0:
                print(f"\r{kind} {show_bytes(size):<20}", end="", file=sys.stderr, flush=True)
            rows.append(measure(kind, size, groups[kind], arguments.rounds))
    if dist.get_rank() == 0:
        print("\r" + " " * 50 + "\r", end="", file=sys.stderr, flush=True)
        costs = taco_torch.stats().planner_costs
        deliver({"machine": machine(), "costs": costs, "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    where = "one host" if arguments.hosts == 1 else f"{arguments.hosts} hosts"
    table = Table(title=f"{arguments.ranks} ranks, {where}; costs: {result['costs']}")
    for heading in ("collective", "size", "choice", "", "best", "", "ratio", "all"):
        table.add_column(heading, justify="left" if heading != "ratio" else "right")
    for row in result["rows"]:
        times = row["times_s"]
        ranking = sorted(times, key=lambda name: times[name])
        table.add_row(
            row["collective"],
            show_bytes(row["bytes"]),
            row["choice"],
            show_time(times[row["choice"]]),
            row["best"],
            show_time(times[row["best"]]),
            f"{row['ratio']:.2f}" + ("" if row["ratio"] <= GOAL else " !"),
            ", ".join(f"{name} {show_time(times[name])}" for name in ranking),
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    within = sum(row["ratio"] <= GOAL for row in result["rows"])
    print(f"{within} of {len(result['rows'])} choices within {GOAL - 1:.0%} of the best")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser)
    parser.add_argument("--transport", choices=["auto", "shm", "udp"], default="auto")
    parser.add_argument("--collective", help=f"of {','.join(KINDS)}; default: all")
    parser.add_argument("--sizes", default=DEFAULT_SIZES, help=f"default {DEFAULT_SIZES}")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each algorithm")
    parser.add_argument("--backends", help="taken for the sake of run_all.py; only taco has a say")
    arguments = parser.parse_args()
    run(__file__, arguments, rank_main, show, TACO_TRANSPORT=arguments.transport)
    return 0


if __name__ == "__main__":
    sys.exit(main())
