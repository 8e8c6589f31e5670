"""The processor time that a byte between hosts costs: gloo, taco, and bare UDP packets beside them.

    python benchmarks/cpu_a_byte.py
    python benchmarks/cpu_a_byte.py --collective all_to_all --placements one_core --functions 20

Four emulated hosts of one rank, no rate limit. All ranks on one core, where wall time is processor
time; spread over the cores; and wherever the scheduler puts them. Backends take turns in the same
processes. A GB is one of payload that crosses a cable, sent and received; its seconds are those of
all ranks together, in the program and in the kernel (getrusage). The bare program sends one stream
of the same packets, with a checksum at both ends and one copy (benchmarks/cpp/bulk_bench.cc).

--functions shows where the last backend spends its time, by sampling (perf). Names of taco's own
functions need `make build DEBUG=1`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import resource
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collectives import Case, make_case, wire_bytes
from launch import add_fabric_arguments, deliver, machine, make_groups, parse_bytes, run
from pairs import BARE, BULK, PATIENCE_S, figures, place

ROOM = sorted(os.sched_getaffinity(0))
PLACEMENTS: dict[str, Callable[[int], Sequence[int]]] = {
    "one_core": lambda _: ROOM[:1],
    "spread": lambda rank: [ROOM[rank % len(ROOM)]],
    "free": lambda _: ROOM,
}
COLLECTIVES = "all_reduce,all_gather,all_to_all"
# A line of `perf report`: share of all samples, object, kernel ([k]) or program ([.]), function.
REPORTED = re.compile(r"^\s*([\d.]+)%\s+(\S+)\s+\[([k.])\]\s+(.+?)(?:\s+-)*\s*$")


def put(rank: int, placement: str) -> None:
    """Binds all threads of this process."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), PLACEMENTS[placement](rank))


def block(case: Case, group: dist.ProcessGroup, times: int, gate: dist.ProcessGroup) -> list[float]:
    """Seconds of an operation: wall time of the slowest rank, and of all ranks' program and kernel.

    The gate's own barrier is in none of them but by its last messages.
    """
    wall, user, kernel = [], 0.0, 0.0
    for _ in range(times):
        dist.barrier(group=gate)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        case.run(group)
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_SELF)
        user += after.ru_utime - before.ru_utime
        kernel += after.ru_stime - before.ru_stime
    slowest = torch.tensor(wall, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    spent = torch.tensor([user / times, kernel / times], dtype=torch.float64)
    dist.all_reduce(spent)
    return [statistics.median(slowest.tolist()), *spent.tolist()]


@contextlib.contextmanager
def sampling(processes: Sequence[int], samples: str) -> Iterator[None]:
    """Inside, perf samples these processes: it has said so before."""
    asks, told = os.pipe(), os.pipe()
    options = ["-e", "cpu-clock", "-F", "1999", "-p", ",".join(map(str, processes))]
    options += ["--delay=-1", f"--control=fd:{asks[0]},{told[1]}", "-o", samples]
    perf = subprocess.Popen(
        ["perf", "record", "-q", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(asks[0], told[1]),
    )
    try:
        os.write(asks[1], b"enable\n")
        if not select.select([told[0]], [], [], PATIENCE_S)[0]:
            raise RuntimeError("perf does not answer: may it sample (perf record)?")
        yield
    finally:
        perf.send_signal(signal.SIGINT)
        perf.wait()
        for end in (*asks, *told):
            os.close(end)


def by_function(
    act: Callable[[], object], processes: Sequence[int], most: int
) -> list[dict[str, Any]]:
    """Where these processes spend their time during `act`, the greatest shares first."""
    with tempfile.NamedTemporaryFile(suffix=".perf") as samples:
        with sampling(processes, samples.name):
            act()
        shown = subprocess.run(
            ["perf", "report", "--stdio", "-q", "-i", samples.name, "--sort", "dso,symbol"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = [match.groups() for match in map(REPORTED.match, shown.splitlines()) if match]
    return [
        {"percent": float(share), "object": where, "kernel": side == "k", "function": name}
        for share, where, side, name in found[:most]
    ]


def profile(act: Callable[[], object], gate: dist.ProcessGroup, most: int) -> list[dict[str, Any]]:
    """In every rank, which acts; what rank 0 saw of all of them."""
    processes: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(processes, os.getpid(), group=gate)
    if dist.get_rank() == 0:
        return by_function(act, processes, most)
    act()
    return []


def rank_main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    groups = make_groups(arguments.backends.split(","))
    rank, world = dist.get_rank(), dist.get_world_size()
    gate = next(iter(groups.values()))
    size = parse_bytes(arguments.size)
    rows = []
    for placement in arguments.placements.split(","):
        for kind in arguments.collective.split(","):
            put(rank, placement)
            case = make_case(kind, size)
            crossed = wire_bytes(kind, case.bytes, arguments.hosts, world) * arguments.hosts / 1e9
            found: dict[str, list[list[float]]] = {name: [] for name in groups}
            for turn in range(arguments.turns + 1):  # the first one warms
                for name, group in groups.items():
                    case.check()
                    measured = block(case, group, arguments.operations if turn else 2, gate)
                    found[name] += [measured] if turn else []
            for name, turns in found.items():
                wall, user, kernel = (statistics.median(part) for part in zip(*turns, strict=True))
                row = {"placement": placement, "collective": kind, "backend": name, "wall_s": wall}
                row |= {"worst_s": max(turn[0] for turn in turns)}
                row |= {"user_a_gb": user / crossed, "kernel_a_gb": kernel / crossed}
                rows.append(row)
            if arguments.functions:
                last = list(groups.values())[-1]
                again = functools.partial(block, case, last, 4 * arguments.operations, gate)
                rows[-1]["functions"] = profile(again, gate, arguments.functions)
    if rank == 0:
        deliver({"machine": machine(), "rows": rows})
    dist.barrier()
    dist.destroy_process_group()


def bare_row(arguments: argparse.Namespace) -> dict[str, float]:
    options = ["--by", "udp", "--bytes", str(1 << 20), "--window", "4", "--seconds", "1"]
    with place(2) as pair:
        turns = [
            figures(pair.run_bare(arguments.bare / "bulk_bench", options), BULK)
            for _ in range(arguments.turns)
        ]
    return {end: statistics.median(turn[end] for turn in turns) for end in ("sender", "receiver")}


def show(result: dict[str, Any], arguments: argparse.Namespace) -> None:
    host = result["machine"]
    print(f"{host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, TCP {host['tcp']}")
    print(f"{arguments.hosts} hosts, {arguments.size} of a tensor, {arguments.turns} turns\n")
    print("| placement | collective | | ms (worst) | s a GB: program | kernel | of the first |")
    print("|---|---|---|--:|--:|--:|--:|")
    first = 1.0
    for row in result["rows"]:
        if row["backend"] == arguments.backends.split(",")[0]:
            first = row["wall_s"]
        print(
            f"| {row['placement']} | {row['collective']} | {row['backend']} "
            f"| {1e3 * row['wall_s']:.1f} ({1e3 * row['worst_s']:.1f}) | {row['user_a_gb']:.3f} "
            f"| {row['kernel_a_gb']:.3f} | {row['wall_s'] / first:.2f} |"
        )
    for row in result["rows"]:
        for line in row.get("functions", []):
            where = "kernel" if line["kernel"] else line["object"]
            label = f"{row['placement']}, {row['collective']}"
            print(f"{label}: {line['percent']:5.2f}% {where} {line['function']}")
    if (arguments.bare / "bulk_bench").exists():
        bare = bare_row(arguments)
        print(f"\nbare UDP: s a GB, sender {bare['sender']:.3f}, receiver {bare['receiver']:.3f}")
        result["bare"] = bare
    else:
        print(f"\nbare UDP: left out, {arguments.bare / 'bulk_bench'} is not built")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_fabric_arguments(parser)
    parser.set_defaults(hosts=4, unbound=True)  # put() places them
    parser.add_argument("--backends", default="gloo,taco", help="baseline first")
    parser.add_argument("--collective", default=COLLECTIVES)
    parser.add_argument("--placements", default=",".join(PLACEMENTS))
    parser.add_argument("--size", default="40M", help="as nccl-tests count it")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--operations", type=int, default=6, help="of a backend in a turn")
    parser.add_argument("--functions", type=int, default=0, help="show so many, of each case")
    parser.add_argument("--bare", type=Path, default=BARE, help="folder of the bare programs")
    arguments = parser.parse_args()
    run(__file__, arguments, rank_main, show)
    return 0


if __name__ == "__main__":
    sys.exit(main())
