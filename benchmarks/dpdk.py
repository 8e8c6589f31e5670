"""HARP over DPDK's memif beside the same devices without a protocol, the kernel's UDP and TCP.

    cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DTACO_PYTHON=OFF -DTACO_BENCH=ON
    cmake --build build/bench --target frames_bench harp-perf
    python benchmarks/dpdk.py --turns 7

All that DPDK can be measured by in one run: messages of 8 MiB one way, small ones in batches, and
small ones answered, between two processes bound to a core each that look for packets all the time.
The bare frames (benchmarks/cpp/frames_bench.cc) are as long as HARP's, with one CRC32C at each end
and one copy to their place. The kernel's UDP and TCP run between two emulated hosts. It needs root
for these, and DPDK. All take turns.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fabric import Fabric, FabricUnavailable
from pairs import BARE, BUILD, Row, by_turns, figures, medians, ratio, require

PERF = BUILD / "bench/csrc/harp/harp-perf"
PATIENCE_S = 60.0
LEVELS = ("auth", "none", "encrypt")
BARE_FRAMES = "bare frames"
UDP = "kernel UDP, auth"
LARGE, SMALL = 8 << 20, 64


def memif(folder: str, rank: int) -> str:
    role = "server" if rank == 0 else "client"
    arguments = f"role={role},socket={folder}/memif,socket-abstract=no"
    return f"net_memif0,{arguments} 10.9.0.{rank + 1}/24"


def bound(rank: int, command: Sequence[str]) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[rank % len(cores)]), *command]


class Run:
    """Two processes, of which the second ends by itself."""

    def __init__(self, commands: Sequence[Sequence[str]], environments: Sequence[dict[str, str]]):
        self.commands, self.environments = commands, environments

    def start(self, rank: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.commands[rank],
            env={**os.environ, "TACO_LOG": "error", **self.environments[rank]},
            stdout=subprocess.PIPE,
            text=True,
        )

    def frames(self) -> Row:
        receiver, sender = self.start(0), self.start(1)
        try:
            output = receiver.communicate(timeout=PATIENCE_S)[0]
            sender.communicate(timeout=PATIENCE_S)
        finally:
            end(receiver, sender)
        return figures(output, {"gbit": r": ([\d.]+) Gbit/s"})

    def harp(self) -> Row:
        server = self.start(0)
        try:
            assert server.stdout is not None
            found = re.search(r"at port (\d+)", server.stdout.readline())
            if found is None:
                raise RuntimeError("harp-perf --server did not say its port")
            self.commands = [self.commands[0], [*self.commands[1], "--port", found[1]]]
            client = self.start(1)
            try:
                output = client.communicate(timeout=PATIENCE_S)[0]
            finally:
                end(client)
        finally:
            end(server)
        return row_of(json.loads(output)["rows"])


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def row_of(rows: Sequence[dict[str, float | str]]) -> Row:
    row: Row = {}
    for each in rows:
        by = "" if each["by"] == "harp" else f"{each['by']} "
        if each["measure"] == "latency" and each["bytes"] == SMALL:
            row[f"{by}us"] = float(each["p50_us"])
        if each["measure"] == "rate" and each["bytes"] == SMALL:
            row[f"{by}rate"] = float(each["messages_per_s"]) / 1e6
        if each["measure"] == "bandwidth" and each["bytes"] == LARGE:
            row[f"{by}gbit"] = float(each["bytes_per_s"]) * 8e-9
    return row


def options_of(arguments: argparse.Namespace, level: str, driver: str) -> list[str]:
    return ["--transport", "udp", "--driver", driver, "--security", level]


def measured(arguments: argparse.Namespace) -> list[list[str]]:
    rounds, seconds = str(arguments.rounds), str(arguments.seconds)
    return [
        ["--measure", "latency,rate", "--sizes", str(SMALL), "--rounds", rounds],
        ["--measure", "bandwidth", "--sizes", str(LARGE), "--seconds", seconds],
    ]


def over_memif(arguments: argparse.Namespace, level: str) -> Row:
    row: Row = {}
    for what in measured(arguments):
        with tempfile.TemporaryDirectory() as folder:
            perf = [str(arguments.perf), *options_of(arguments, level, "dpdk")]
            server = [*perf, "--server", "--listen", "127.0.0.1", "--port", "0", "--once"]
            client = [*perf, "--client", "127.0.0.1", "--json", *what]
            polls = {"TACO_HARP_POLL": "always", "LD_LIBRARY_PATH": library_path(arguments)}
            environments = [{**polls, "TACO_HARP_DPDK": memif(folder, r)} for r in (0, 1)]
            row |= Run([bound(0, server), bound(1, client)], environments).harp()
    return row


def library_path(arguments: argparse.Namespace) -> str:
    return str(arguments.perf.parent / "drivers/dpdk")


def bare_frames(arguments: argparse.Namespace) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for rank in (0, 1):
            options = ["--rank", str(rank), "--device", memif(folder, rank)]
            program = [str(arguments.bare / "frames_bench"), *options]
            commands.append(bound(rank, [*program, "--seconds", str(arguments.seconds)]))
        return Run(commands, [{}, {}]).frames()


def over_kernel(arguments: argparse.Namespace, fabric: Fabric) -> Row:
    """The same client measures TCP that polls, too."""
    row: Row = {}
    for what in measured(arguments):
        perf = [str(arguments.perf), *options_of(arguments, "auth", "udp")]
        host = fabric.address(0)
        server = [*perf, "--server", "--listen", host, "--port", "0", "--once"]
        client = [*perf, "--client", host, "--json", "--tcp", *what]
        commands = [
            fabric.command(rank, bound(rank, command))
            for rank, command in enumerate((server, client))
        ]
        row |= Run(commands, [{}, {}]).harp()
    return row


def show(rows: dict[str, list[Row]]) -> None:
    print("| by | 8 MiB one way, Gbit/s | 64 B, M/s | 64 B, half a round trip, us |")
    print("|---|--:|--:|--:|")
    for name, of_turns in rows.items():
        row = medians(of_turns)
        cells = [f"{row[key]:.3g}" if key in row else "" for key in ("gbit", "rate", "us")]
        print(f"| {name} | {' | '.join(cells)} |")
    polling = [{"us": row["tcp-polling us"]} for row in rows[UDP]]
    print(f"| TCP that polls | | | {medians(polling)['us']:.3g} |")
    auth, none, encrypt = (rows[f"memif, {level}"] for level in LEVELS)
    goals = [
        ("bandwidth of bare frames'", auth, rows[BARE_FRAMES], "gbit", "0.85 or more"),
        ("bandwidth of kernel UDP's", auth, rows[UDP], "gbit", "1.5 or more"),
        ("time of TCP's that polls", auth, polling, "us", "0.5 or less"),
        ("encrypt's bandwidth of none's", encrypt, none, "gbit", "0.65 or more"),
    ]
    print("\n| memif, auth, by the medians of turns | ratio, middle half | goal |\n|---|--:|--:|")
    for what, ours, theirs, key, goal in goals:
        middle, low, high = ratio(ours, theirs, key)
        print(f"| {what} | {middle:.2f} ({low:.2f} to {high:.2f}) | {goal} |")
    rate = medians(auth)["rate"]
    print(f"| messages of 64 B, M/s | {rate:.2f} | 1 or more |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--perf", type=Path, default=PERF, help="harp-perf, as built")
    parser.add_argument("--bare", type=Path, default=BARE, help="folder of frames_bench")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1, help="of each candidate in a turn")
    parser.add_argument("--rounds", type=int, default=20_000, help="of each round trip in a turn")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    require(arguments.perf, "harp-perf")
    require(arguments.bare / "frames_bench", "frames_bench")
    try:
        with Fabric(hosts=2) as fabric:
            candidates: dict[str, Callable[[], Row]] = {
                BARE_FRAMES: functools.partial(bare_frames, arguments),
                UDP: functools.partial(over_kernel, arguments, fabric),
            }
            for level in LEVELS:
                candidates[f"memif, {level}"] = functools.partial(over_memif, arguments, level)
            rows = by_turns(candidates, arguments.turns)
    except FabricUnavailable as reason:
        raise SystemExit(f"no emulated hosts here: {reason}") from None
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
