"""HARP's drivers on one cable between two hosts: latency, rate and processor time of each.

    python benchmarks/drivers.py
    python benchmarks/drivers.py --drivers udp,xdp --mtu 1500 --turns 5 --json out/drivers.json

Two emulated hosts, without torch: harp-perf on each. Drivers take turns, at each MTU. A veth hands
the kernel's runs of datagrams on in one piece, as no wire does; "cut" has the kernel cut them
before, as it does for a NIC that cannot. The processor time is of both sides, for a GB of payload.
Needs root, and what the drivers need.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from fabric import Fabric
from pairs import PERF
from report_cells import head, line

SIZES = "8,64,4K,1M"
PATIENCE_S = 120


def measure(fabric: Fabric, driver: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One server on the first host, one client on the other; rows as harp-perf gives them."""
    perf = [str(arguments.perf), "--driver", driver]
    server = fabric.popen(0, [*perf, "--server", "--once"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        client = [*perf, "--client", fabric.address(0), "--json", "--sizes", SIZES]
        client += ["--measure", "latency,bandwidth", "--rounds", str(arguments.rounds)]
        client += ["--seconds", str(arguments.seconds)]
        rows: list[dict[str, Any]] = json.loads(fabric.output(1, client))["rows"]
        server.wait(PATIENCE_S)
    finally:
        server.kill()
        server.wait()
    return rows


def summary(turns: list[list[dict[str, Any]]]) -> dict[str, float]:
    """Medians of the turns, under names like p50_us_8 and cpu_s_a_gb_1048576."""
    found: dict[str, list[float]] = {}
    for row in (row for turn in turns for row in turn):
        if row["measure"] == "latency":
            found.setdefault(f"p50_us_{row['bytes']}", []).append(row["p50_us"])
            continue
        spent = row["client_cpu_s"] + row["server_cpu_s"]
        carried = row["messages"] * row["bytes"] / 1e9
        found.setdefault(f"gb_a_s_{row['bytes']}", []).append(row["bytes_per_s"] / 1e9)
        found.setdefault(f"cpu_s_a_gb_{row['bytes']}", []).append(spent / carried)
    return {name: statistics.median(values) for name, values in found.items()}


def all_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for mtu in arguments.mtu:
        for cut in (False, True):
            drivers = [name for name in arguments.drivers.split(",") if not cut or name == "udp"]
            with Fabric(hosts=2, mtu=mtu) as fabric:
                fabric.set_super_packets(not cut)
                turns: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in drivers}
                for _ in range(arguments.turns):
                    for name, taken in turns.items():
                        taken.append(measure(fabric, name, arguments))
            for name, taken in turns.items():
                label = f"{name}, cut" if cut else name
                rows.append({"driver": label, "mtu": mtu, **summary(taken)})
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    latencies, rates = (8, 64, 4096, 1 << 20), (4096, 1 << 20)
    heads = ("driver", "MTU", "us: 8 B", "64 B", "4 KiB", "1 MiB", "GB/s: 4 KiB", "1 MiB")
    lines = head(*heads, "s a GB: 1 MiB")
    for row in rows:
        cells = [f"{row[f'p50_us_{size}']:.1f}" for size in latencies]
        cells += [f"{row[f'gb_a_s_{size}']:.2f}" for size in rates]
        cells.append(f"{row['cpu_s_a_gb_1048576']:.2f}")
        lines.append(line(row["driver"], str(row["mtu"]), *cells))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--perf", type=Path, default=PERF, help="the command harp-perf")
    parser.add_argument("--drivers", default="udp,xdp", help="baseline first")
    parser.add_argument("--mtu", type=int, nargs="+", default=[1500, 9000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2000, help="of each latency")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each bandwidth")
    parser.add_argument("--json", type=Path, help="write the rows there")
    arguments = parser.parse_args()
    rows = all_rows(arguments)
    print("\n".join(table(rows)))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
