"""NCCL's network plugin beside a plain one over TCP, both called as NCCL's proxies call them.

    python benchmarks/nccl_net.py                 # between two emulated hosts (needs root)
    python benchmarks/nccl_net.py --hosts 1 --json out/nccl_net.json

No GPU and no NCCL: the rate of one direction by one and by several connections, half a round trip
of 8 bytes, and the processor time of both sides for a GB. Plugins take turns, a core to each of the
two processes. Emulated hosts hand runs of packets on in one piece, as no wire does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from fabric import Fabric, FabricUnavailable
from pairs import BARE, require

PLUGIN = "csrc/ext/nccl/libnccl-net-harp.so"


def rows_of(arguments: argparse.Namespace, options: list[str]) -> list[dict[str, Any]]:
    bench = require(arguments.bare / "nccl_net_bench", "nccl_net_bench")
    harp = arguments.plugin or arguments.bare.parents[1] / PLUGIN
    plugins = [arguments.bare / "libnccl-net-tcp.so", require(harp, "nccl-net-harp")]
    command = [bench, "--rounds", arguments.turns, "--seconds", arguments.seconds, *options]
    said = subprocess.run(
        [str(word) for word in (*command, *plugins)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return [json.loads(line) for line in said.splitlines()]


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.hosts == 1:
        return rows_of(arguments, [])
    with Fabric(hosts=2) as fabric:
        hosts = range(2)
        spaces = ",".join(fabric.namespace(host) for host in hosts)
        addresses = ",".join(fabric.address(host) for host in hosts)
        return rows_of(arguments, ["--namespaces", spaces, "--addresses", addresses])


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a case: medians of both plugins and of the ratios of a turn."""
    cases: dict[tuple[int, int, str], dict[str, list[float]]] = {}
    for row in rows:
        by = "harp" if "harp" in row["plugin"] else "tcp"
        for figure in ("half_round_trip_us", "gb_a_s", "cpu_s_a_gb"):
            if figure in row:
                case = cases.setdefault((row["connections"], row["bytes"], figure), {})
                case.setdefault(by, []).append(row[figure])
    return [
        {
            "connections": connections,
            "bytes": size,
            "figure": figure,
            "tcp": statistics.median(case["tcp"]),
            "harp": statistics.median(case["harp"]),
            "ratio": statistics.median(
                harp / tcp for harp, tcp in zip(case["harp"], case["tcp"], strict=True)
            ),
        }
        for (connections, size, figure), case in cases.items()
    ]


def show(rows: list[dict[str, Any]]) -> None:
    print("| figure | connections | bytes | TCP | HARP | ratio |")
    print("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row['figure']} | {row['connections']} | {row['bytes']} "
            f"| {row['tcp']:.3f} | {row['harp']:.3f} | {row['ratio']:.2f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bare", type=Path, default=BARE, help="folder of the bare programs")
    parser.add_argument("--plugin", type=Path, help="HARP's, if not the one built beside them")
    parser.add_argument("--hosts", type=int, choices=(1, 2), default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each case and plugin")
    parser.add_argument("--json", type=Path, help="write the rows there")
    arguments = parser.parse_args()
    try:
        rows = summary(measure(arguments))
    except FabricUnavailable as reason:
        sys.exit(f"no emulated hosts: {reason}")
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
