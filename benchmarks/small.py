"""Small messages beside a bare TCP connection: answers to each other, and the first one there is.

    cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DTACO_PYTHON=OFF -DTACO_BENCH=ON
    cmake --build build/bench --target small_bench harp-perf
    python benchmarks/small.py --perf build/bench/csrc/harp/harp-perf
    python benchmarks/small.py --perf build/bench/csrc/harp/harp-perf --round-trip 10

The first form has two processes answer each other's messages of --bytes, each bound to a core,
beside TCP_NODELAY connections (benchmarks/cpp/small_bench.cc) of which one sleeps until something
comes and one keeps asking. The second measures the first message of a session between two emulated
hosts so many milliseconds apart, from the call that sends it to its receipt, handshake included;
beside it that of a TCP connection from connect() on. The receiver asks for it only when the
handshake has begun, so that nothing but the first message can have set that off. All take turns.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path

from delay import DelayedCable
from fabric import Fabric, FabricUnavailable
from pairs import (
    Pair,
    Row,
    add_build_options,
    by_turns,
    figures,
    medians,
    place,
    ratio,
    require,
)

ANSWER = {
    "us": r"half round trip median ([\d.]+) us",
    "p90": r"half round trip .* p90 ([\d.]+)",
    "p99": r"half round trip .* p99 ([\d.]+)",
}
FIRST = {"us": r"first message ([\d.]+) us"}
Rows = dict[str, list[Row]]


def compare_answers(arguments: argparse.Namespace, pair: Pair) -> Rows:
    size, rounds = str(arguments.bytes), str(arguments.rounds)

    def harp(level: str) -> Row:
        # Bulk data are no part of this.
        options = ["--small", size, "--rounds", rounds, "--seconds", "0.01", "--bytes", "1"]
        return figures(pair.run_harp(arguments.perf, options, TACO_HARP_SECURITY=level), ANSWER)

    def tcp(wait: str) -> Row:
        options = ["--wait", wait, "--bytes", size, "--rounds", rounds]
        return figures(pair.run_bare(arguments.bare / "small_bench", options), ANSWER)

    candidates = {f"harp, {level}": functools.partial(harp, level) for level in ("auth", "none")}
    candidates |= {f"TCP, {wait}": functools.partial(tcp, wait) for wait in ("blocking", "polling")}
    rows = by_turns(candidates, arguments.turns)
    print(f"| half a round trip of {size} B | median | p90 | p99 | of blocking TCP | of polling |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, of_turns in rows.items():
        row = medians(of_turns)
        beside = [
            f"{ratio(of_turns, rows[f'TCP, {w}'], 'us')[0]:.2f}" for w in ("blocking", "polling")
        ]
        print(
            f"| {name} | {row['us']:.1f} us | {row['p90']:.1f} us | {row['p99']:.1f} us | "
            f"{' | '.join(beside)} |"
        )
    return rows


def compare_first(arguments: argparse.Namespace) -> Rows:
    one_way = arguments.round_trip / 2e3
    with Fabric(hosts=2) as fabric, DelayedCable(fabric, one_way) as cable:
        pair = Pair(fabric)
        # When the first packet has been there for half of its way back.
        late = str(round(0.75e6 * cable.round_trip()))
        size = str(arguments.bytes)

        def with_round_trip(text: str) -> Row:
            row = figures(text, FIRST)
            row["round_trip"] = cable.round_trip() * 1e6
            row["trips"] = row["us"] / row["round_trip"]
            row["beyond"] = row["us"] - 1.5 * row["round_trip"]
            return row

        def harp() -> Row:
            options = ["--small", size, "--first", late]
            return with_round_trip(pair.run_harp(arguments.perf, options))

        def tcp() -> Row:
            options = ["--first", "on", "--bytes", size]
            return with_round_trip(pair.run_bare(arguments.bare / "small_bench", options))

        rows = by_turns({"harp": harp, "TCP": tcp}, arguments.turns)
    print(f"| first message of {size} B | median | round trip | round trips | beyond 1.5 (most) |")
    print("|---|--:|--:|--:|--:|")
    for name, of_turns in rows.items():
        row = medians(of_turns)
        most = max(one["beyond"] for one in of_turns)
        print(
            f"| {name} | {row['us'] / 1e3:.2f} ms | {row['round_trip'] / 1e3:.2f} ms | "
            f"{row['trips']:.2f} | {row['beyond'] / 1e3:+.2f} ms ({most / 1e3:+.2f} ms) |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_build_options(parser)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20_000, help="of a candidate in a turn")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--round-trip", type=float, help="ms: measure the first message instead")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    require(arguments.perf, "harp-perf")
    require(arguments.bare / "small_bench", "small_bench")
    try:
        if arguments.round_trip:
            rows = compare_first(arguments)
        else:
            with place(arguments.hosts) as pair:
                rows = compare_answers(arguments, pair)
    except FabricUnavailable as reason:
        raise SystemExit(f"no emulated hosts here: {reason}") from None
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
