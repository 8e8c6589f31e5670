"""Two builds of taco_torch beside each other, before and after a change, turn by turn.

    pip install --no-deps --no-build-isolation --target /tmp/before .      (then the other)
    python benchmarks/compare.py /tmp/before /tmp/after
    python benchmarks/compare.py /tmp/before /tmp/after --turns 9 --hosts 4 --sizes 8,40M

A folder holds the package `taco_torch` as installed. Both run `collectives.py` with the options
given, over taco alone, in turns (before, after, after, before, ...): what disturbs the machine for
longer than a turn disturbs both. A ratio is the median of those of neighbouring turns, after over
before; beside it the middle half of them, which says how much a single one is worth.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from launch import show_bytes, show_time

COLLECTIVES = Path(__file__).with_name("collectives.py")
Times = dict[tuple[str, int], float]


def turn(folder: Path, options: list[str]) -> Times:
    """The median time of every case over the build in `folder`."""
    # The entry points of another taco_torch, installed where Python looks anyway, are not wanted.
    environment = {**os.environ, "PYTHONPATH": str(folder), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        command = [sys.executable, str(COLLECTIVES), "--backends", "taco", "--json", str(result)]
        subprocess.run([*command, *options], env=environment, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(result.read_text())["rows"]
    return {(row["collective"], row["bytes"]): row["median_s"] for row in rows}


def show(before: Mapping[int, Times], after: Mapping[int, Times]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"medians of {len(before)} turns each")
    for heading in ("collective", "size"):
        table.add_column(heading)
    for heading in ("before", "after", "after/before", "middle half"):
        table.add_column(heading, justify="right")
    for case in before[0]:
        pairs = [(before[i][case], after[i][case]) for i in before]
        ratios = sorted(new / old for old, new in pairs)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        table.add_row(
            case[0],
            show_bytes(case[1]),
            show_time(statistics.median(old for old, _ in pairs)),
            show_time(statistics.median(new for _, new in pairs)),
            f"{statistics.median(ratios):.3f}",
            f"{low:.3f} - {high:.3f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Other options: those of collectives.py."
    )
    parser.add_argument("before", type=Path, help="folder with the package of the older build")
    parser.add_argument("after", type=Path, help="folder with the package of the newer build")
    parser.add_argument("--turns", type=int, default=5, help="of each build; default 5")
    arguments, options = parser.parse_known_args()
    for folder in (arguments.before, arguments.after):
        if not (folder / "taco_torch" / "__init__.py").exists():
            parser.error(f"{folder} holds no package taco_torch: install a build there")
    before: dict[int, Times] = {}
    after: dict[int, Times] = {}
    for number in range(arguments.turns):
        builds = [(arguments.before, before), (arguments.after, after)]
        for folder, times in builds if number % 2 == 0 else reversed(builds):
            print(f"\rturn {number + 1} of {arguments.turns} ", end="", file=sys.stderr, flush=True)
            times[number] = turn(folder.resolve(), options)
    print("\r" + " " * 30 + "\r", end="", file=sys.stderr, flush=True)
    show(before, after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
