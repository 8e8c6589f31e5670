"""Two processes that exchange messages, each bound to a core: harp-perf, or a program over bare
sockets beside it; on this machine's own network or on two emulated hosts."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fabric import Fabric, FabricUnavailable

BUILD = Path(__file__).parent.parent / "build"
PERF = BUILD / "release/csrc/harp/harp-perf"
BARE = BUILD / "bench/benchmarks/cpp"
PATIENCE_S = 120.0
Row = dict[str, float]


def add_build_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--perf", type=Path, default=PERF, help="harp-perf, as built")
    parser.add_argument("--bare", type=Path, default=BARE, help="folder of the bare programs")
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=1, help="2: emulated hosts")


def require(program: Path, target: str) -> Path:
    if not program.exists():
        sys.exit(
            f"{program} is not there: cmake --build {program.parents[2]} --target {target} "
            "(programs over bare sockets need -DTACO_BENCH=ON)"
        )
    return program


class Pair:
    """Where two ranks run, and how."""

    def __init__(self, fabric: Fabric | None = None) -> None:
        self.fabric = fabric

    def address(self, rank: int) -> str:
        return self.fabric.address(rank) if self.fabric else "127.0.0.1"

    def run(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> str:
        """The output of both ranks, once both have ended well."""
        cores = sorted(os.sched_getaffinity(0))
        ranks = []
        for rank, command in enumerate(commands):
            bound = ["taskset", "-c", str(cores[rank % len(cores)]), *command]
            argv = self.fabric.command(rank, bound) if self.fabric else bound
            ranks.append(
                subprocess.Popen(
                    argv, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
                )
            )
        try:
            outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
        if any(rank.returncode != 0 for rank in ranks):
            raise SystemExit(f"{commands[0]} failed: {outputs}")
        return "\n".join(outputs)

    def run_harp(
        self, perf: Path, options: Sequence[str], port: int = 0, **environment: str
    ) -> str:
        """`port`: rank 1's; 0: any."""
        with tempfile.TemporaryDirectory() as folder:
            command = [str(perf), "--transport", "udp", "--files", f"{folder}/meet", *options]
            if self.fabric:
                # Without it each address of an interface, of either IP version, would be a path.
                command += ["--master", self.address(1)]
            commands = [[*command, "--rank", str(rank)] for rank in (0, 1)]
            if port:
                commands[1] = ["env", f"TACO_PORT={port}", *commands[1]]
            return self.run(commands, {"TACO_LOG": "error", **environment})

    def run_bare(self, program: Path, options: Sequence[str]) -> str:
        port = free_port()
        commands = []
        for rank in (0, 1):
            ends = ["--own", self.address(rank), "--other", self.address(1 - rank)]
            commands.append(
                [str(program), "--rank", str(rank), *ends, "--port", str(port), *options]
            )
        return self.run(commands, {})


@contextlib.contextmanager
def place(hosts: int) -> Iterator[Pair]:
    if hosts == 1:
        yield Pair()
        return
    try:
        with Fabric(hosts=2) as fabric:
            yield Pair(fabric)
    except FabricUnavailable as reason:
        raise SystemExit(f"no emulated hosts here: {reason}") from None


def free_port() -> int:
    """A port that, like the one after it, nobody has on this machine."""
    while True:
        with contextlib.ExitStack() as held:
            first, second = (
                held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in "ab"
            )
            first.bind(("", 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("", port + 1))
                return port


def figures(text: str, patterns: Mapping[str, str]) -> Row:
    row = {}
    for name, pattern in patterns.items():
        found = re.search(pattern, text)
        if found is None:
            raise RuntimeError(f"no {name} in what the programs said:\n{text}")
        row[name] = float(found[1])
    return row


BULK = {
    "gbit": r"sent \d+ B: .*= ([\d.]+) Gbit/s",
    "sender": r"sent .* ([\d.]+) s of processor",
    "receiver": r"received .* ([\d.]+) s of processor",
}


def by_turns(
    candidates: Mapping[str, Callable[[], Row]], turns: int, label: str = ""
) -> dict[str, list[Row]]:
    """Each candidate once a turn, in an order that is reversed from turn to turn: what disturbs the
    machine for longer than a turn disturbs all."""
    rows: dict[str, list[Row]] = {name: [] for name in candidates}
    for turn in range(turns):
        print(f"{label}turn {turn + 1} of {turns} ...", file=sys.stderr, flush=True)
        for name in list(candidates)[:: 1 if turn % 2 == 0 else -1]:
            rows[name].append(candidates[name]())
    return rows


def medians(rows: Sequence[Row]) -> Row:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def ratio(ours: Sequence[Row], theirs: Sequence[Row], name: str) -> tuple[float, float, float]:
    """The median of the turns' ratios, and the least and the most of their middle half."""
    found = sorted(a[name] / b[name] for a, b in zip(ours, theirs, strict=True))
    return statistics.median(found), found[len(found) // 4], found[-1 - len(found) // 4]


def compare_engines(
    arguments: argparse.Namespace,
    measure: Callable[[argparse.Namespace, int], Row],
    what: str = "",
    *,
    of_times: bool = False,
) -> dict[str, list[Row]]:
    """One engine and `arguments.engines`, each with a core of `arguments.cores`, in turns; shows
    what several bring. `of_times`: rows are times, of which several take less."""
    load = os.getloadavg()[0]
    counts = (1, arguments.engines)
    rows = by_turns(
        {str(count): functools.partial(measure, arguments, count) for count in counts},
        arguments.turns,
    )
    one, several = rows["1"], rows[str(arguments.engines)]
    print(f"{arguments.turns} turns, load {load:.1f} before them")
    print(f"| {what} | one engine | {arguments.engines} engines | ratio | middle half |")
    print("|---|--:|--:|--:|--:|")
    for name in one[0]:
        middle, low, high = ratio(one, several, name) if of_times else ratio(several, one, name)
        print(
            f"| {name} | {medians(one)[name]:.2f} | {medians(several)[name]:.2f} | "
            f"{middle:.2f} | {low:.2f}-{high:.2f} |"
        )
    return rows


def take_cores(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    arguments.cores = sorted(os.sched_getaffinity(0))
    if len(arguments.cores) < arguments.engines:
        parser.error(f"--engines {arguments.engines}: there are {len(arguments.cores)} cores")
