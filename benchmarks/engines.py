"""Several engines of a process beside one: the bytes that they carry.

    cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DTACO_PYTHON=OFF -DTACO_BENCH=ON
    cmake --build build/bench --target harp-perf
    python benchmarks/engines.py --perf build/bench/csrc/harp/harp-perf

Two processes of this host, as between hosts (UDP): each pair of engines i has messages of its own,
as a group would, and both of its ends are pinned to the i-th core. One engine and several take
turns; a ratio is the median of those of neighbouring turns, beside it the middle half of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from pairs import PERF, Row, compare_engines, require, take_cores

MEASURES = {  # by the name of a row: its measure, size, field and divisor
    "8 MiB, GB/s": ("bandwidth", "8M", "bytes_per_s", 1e9),
    "64 KiB, GB/s": ("bandwidth", "64K", "bytes_per_s", 1e9),
    "64 B, million a second": ("rate", "64", "messages_per_s", 1e6),
}


def run(arguments: argparse.Namespace, engines: int) -> Row:
    cores = ",".join(str(core) for core in arguments.cores[:engines])
    row: Row = {}
    for name, (measure, size, field, divisor) in MEASURES.items():
        command = [str(arguments.perf), "--transport", "udp", "--json", "--measure", measure]
        command += ["--sizes", size, "--seconds", str(arguments.seconds)]
        command += ["--engines", str(engines), "--cores", cores]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row[name] = json.loads(said)["rows"][0][field] / divisor
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--perf", type=Path, default=PERF, help="harp-perf, as built")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measure in a turn")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    require(arguments.perf, "harp-perf")
    take_cores(parser, arguments)
    load = os.getloadavg()[0]
    rows = compare_engines(arguments, run)
    if arguments.json:
        arguments.json.write_text(json.dumps({"load": load, "rows": rows}))


if __name__ == "__main__":
    main()
