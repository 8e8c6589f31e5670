"""Bulk data of one session beside a bare program that does the same, and beside one TCP stream.

    cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DTACO_PYTHON=OFF -DTACO_BENCH=ON
    cmake --build build/bench --target bulk_bench harp-perf
    python benchmarks/bulk.py --perf build/bench/csrc/harp/harp-perf
    python benchmarks/bulk.py --hosts 2 --sizes 64K,16M --turns 9

One sender, one receiver, each bound to a core, no rate limit. The bare program
(benchmarks/cpp/bulk_bench.cc) sends the same packets over UDP (GSO, GRO, headers of 32 bytes, a
CRC32C at both ends, one copy) and does nothing else. "kernel" is TACO_HARP_CHECKSUM, whose peer is
the bare program without CRC; TCP, which leaves that to the kernel too, stands beside both. As many
messages are under way as make up --under-way, and 4 at least. All candidates take turns; the table
has medians, and medians of the ratios within a turn with their middle half.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from launch import machine, parse_bytes, show_bytes
from pairs import BULK, Pair, Row, add_build_options, by_turns, figures, medians, place, ratio
from pairs import require as require_program

# Ours, and the bare program that does as much.
PEERS = {"harp": "bare", "harp, kernel": "bare, no CRC"}
HEADING = "size | | Gbit/s | of the bare program's (middle half) | s a GB: sender | receiver"


def candidates(
    arguments: argparse.Namespace, pair: Pair, size: int
) -> dict[str, Callable[[], Row]]:
    window = max(4, parse_bytes(arguments.under_way) // size)
    options = ["--bytes", str(size), "--window", str(window)]
    options += ["--seconds", str(arguments.seconds)]

    def harp(**environment: str) -> Row:
        # Small messages are no part of this: one, since the program measures them first.
        # Loopback would carry larger packets than the bare program sends.
        environment |= {"TACO_MTU": "1500"}
        text = pair.run_harp(arguments.perf, [*options, "--rounds", "1"], **environment)
        return figures(text, BULK)

    def bare(*more: str) -> Row:
        return figures(pair.run_bare(arguments.bare / "bulk_bench", [*options, *more]), BULK)

    return {
        "harp": harp,
        "bare": functools.partial(bare, "--by", "udp"),
        "harp, kernel": functools.partial(harp, TACO_HARP_CHECKSUM="kernel"),
        "bare, no CRC": functools.partial(bare, "--by", "udp", "--crc", "off"),
        "TCP": functools.partial(bare, "--by", "tcp"),
    }


def lines(size: int, rows: dict[str, list[Row]]) -> Sequence[str]:
    found = []
    for name, of_turns in rows.items():
        row = medians(of_turns)
        beside = ""
        if name in PEERS:
            middle, low, high = ratio(of_turns, rows[PEERS[name]], "gbit")
            beside = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        found.append(
            f"{show_bytes(size)} | {name} | {row['gbit']:.1f} | {beside} | "
            f"{row['sender']:.3f} | {row['receiver']:.3f}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_build_options(parser)
    parser.add_argument("--sizes", default="64K,256K,1M,4M,16M", help="of a message")
    parser.add_argument("--under-way", default="4M", help="bytes of messages that are not done yet")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1, help="of each candidate in a turn")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    require_program(arguments.perf, "harp-perf")
    require_program(arguments.bare / "bulk_bench", "bulk_bench")
    result = {}
    print(f"| {HEADING} |\n|--:|---|--:|--:|--:|--:|")
    with place(arguments.hosts) as pair:
        for size in map(parse_bytes, arguments.sizes.split(",")):
            found = candidates(arguments, pair, size)
            rows = by_turns(found, arguments.turns, f"{show_bytes(size)}: ")
            for line in lines(size, rows):
                print(f"| {line} |", flush=True)
            result[str(size)] = rows
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": result}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
