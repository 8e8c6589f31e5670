"""Tables of HARP and of the page store for docs/benchmarks.md, of what `make bench` leaves in out/.

Each function takes the results of the runs that it needs, as run_all.py's programs write them, and
returns the lines of its table. A figure that misses its goal is bold.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from drivers import table as drivers_table
from launch import parse_bytes, show_time
from loss import KINDS, condition, kept_by_turn
from report_cells import head, judged, line
from report_questions import QUESTIONS
from two_links import wire_seconds

Results = Mapping[str, Any]  # by the name of a run
KIND_NAMES = {"single": "single datagrams", "super": "super-packets"}


def two_links(results: Results) -> list[str]:
    """4 hosts, 40 MiB, 1 Gbit/s a link, as two_links.py measures by default."""
    hosts, size, rate, goal = 4, parse_bytes("40M"), 1e9, 1.9
    lines = head("", "one link", "two links", "two / one", "goal")
    for kind, by_links in results["two_links"]["times"].items():
        limit = wire_seconds(kind, size, hosts, rate)
        one, two = ([statistics.median(turn) for turn in by_links[links]] for links in "12")
        gain = statistics.median(a / b for a, b in zip(one, two, strict=True))
        cells = [
            f"{show_time(statistics.median(times))} ({show_time(limit / links)})"
            for links, times in ((1, one), (2, two))
        ]
        lines.append(line(kind, *cells, judged(gain, f"{gain:.2f}x", least=goal), f"{goal}x"))
    return lines


def links(results: Results) -> list[str]:
    deaths = results["links"]["deaths"]
    lines = head(f"{len(deaths)} deaths", "median", "most", "goal")
    for name, text, goal in (
        ("pause_s", "pause", 1.0),
        ("return_s", "until a mended link is used again", 2.0),
    ):
        every = [death[name] for death in deaths]
        most = judged(max(every), f"{max(every):.2f} s", most=goal)
        lines.append(line(text, f"{statistics.median(every):.2f} s", most, f"{goal:g} s"))
    return lines


def loss(results: Results) -> list[str]:
    times = results["loss"]["times"]
    goals = {0.01: 0.95, 0.05: 0.85}
    lines = head("", "taco", "gloo", "goal")
    for kind in KINDS:
        for share, goal in goals.items():
            cells = []
            for name in ("taco", "gloo"):
                kept = kept_by_turn(times, name, kind, share)
                middle = statistics.median(kept)
                text = (
                    f"{middle:.1%}"
                    if name == "gloo"
                    else judged(middle, f"{middle:.1%}", least=goal)
                )
                cells.append(f"{text} ({min(kept):.1%}, {max(kept):.1%})")
            lines.append(line(f"{share:.0%} of {KIND_NAMES[kind]}", *cells, f"{goal:.0%}"))
    for name in ("taco", "gloo"):
        clean = statistics.median(
            one for turn in times[condition(name, "single", 0.0)] for one in turn
        )
        lines.append(line(f"no loss, single datagrams, {name}", show_time(clean), "", ""))
    return lines


def bare(results: Results) -> list[str]:
    lines = head("question", "measured", "goal", "command", words=4)
    for run, questions in QUESTIONS.items():
        lines += questions(results[run])
    return lines


PLACES = {"one_core": "on one core", "spread": "spread", "free": "unbound"}
BYTE_GOALS = {
    "one_core": {"all_reduce": 1.0, "all_gather": 0.6, "all_to_all": 1.0},
    "spread": {"all_reduce": 0.67, "all_gather": 0.5, "all_to_all": 0.8},
    "free": {"all_reduce": 1.0, "all_gather": 1.0, "all_to_all": 1.0},
}


def cpu_a_byte(results: Results) -> list[str]:
    result = results["cpu_a_byte"]
    heads = ("ranks", "", "gloo: ms", "s a GB", "taco: ms", "s a GB", "time", "worst", "goal")
    lines = head(*heads, words=2)
    rows = {(row["placement"], row["collective"], row["backend"]): row for row in result["rows"]}
    for place, goals in BYTE_GOALS.items():
        for kind, goal in goals.items():
            gloo, taco = (rows[place, kind, name] for name in ("gloo", "taco"))
            cells = []
            for row in (gloo, taco):
                cells.append(f"{row['wall_s'] * 1e3:.1f}")
                cells.append(f"{row['user_a_gb']:.2f} + {row['kernel_a_gb']:.2f}")
            usual, worst = taco["wall_s"] / gloo["wall_s"], taco["worst_s"] / gloo["worst_s"]
            goal_of_worst = goal if place == "free" else None
            cells += [
                judged(usual, f"{usual:.2f}", most=goal),
                judged(worst, f"{worst:.2f}", most=goal_of_worst),
            ]
            lines.append(line(PLACES[place], kind, *cells, f"{goal:g}"))
    if "bare" in result:
        ends = result["bare"]
        lines += [
            "",
            f"Bare UDP packets: {ends['sender'] + ends['receiver']:.2f} s a GB of both ends.",
        ]
    return lines


def drivers(results: Results) -> list[str]:
    return drivers_table(results["drivers"])


def sharing(results: Results) -> list[str]:
    """HARP beside one TCP stream; then many senders of HARP to one host."""
    rows, quarter = results["sharing"], 0.245  # as two digits show it
    lines = head("queue, beside", "HARP first: HARP, TCP", "TCP first: HARP, TCP", "goal")
    queues = list(dict.fromkeys(name.split(" ms ")[0] for name in rows))

    def shares(queue: str, control: str, first: str) -> str:
        row = rows[f"{queue} ms {control}, {first} first"]
        return ", ".join(
            judged(row[end], f"{row[end]:.2f}", least=quarter) for end in ("harp", "tcp")
        )

    for queue in queues:
        for control in ("cubic", "bbr"):
            if f"{queue} ms {control}, HARP first" in rows:
                by_first = (shares(queue, control, first) for first in ("HARP", control))
                lines.append(line(f"{queue} ms, {control}", *by_first, ">= 0.25 each"))
    lines += ["", *head("16 senders", "of the link", "Jain", "wait p99", "dropped a second")]
    lines.append(line("goal", ">= 0.90", ">= 0.95", "<= 15 ms", ""))
    for name, row in rows.items():
        if "incast" not in name:
            continue
        queue, _, how = name.partition(" ms incast of 16 ")
        cells = [
            judged(row["share"], f"{row['share']:.2f}", least=0.9),
            judged(row["jain"], f"{row['jain']:.2f}", least=0.95),
            judged(row["queue_p99"], f"{row['queue_p99']:.1f} ms", most=15),
        ]
        lines.append(line(f"{queue} ms, {how}", *cells, f"{row['drops']:.0f}"))
    return lines


PAGE_ROWS = {  # of zerocache_step.py, with the least share of plain torch's speed
    "quarter_2048": ("device 25%, host the rest, 2,048 tokens", 0.9),
    "half_on_disk": ("half of the state on the disk", 0.86),
    "half_in_backward": ("the same, stepped in the backward pass", 0.86),
}


def page_store(results: Results) -> list[str]:
    rows = results["zerocache_step"]["rows"]
    lines = head("", "step", "in memory", "limit", "speed", "goal", "peak, in memory")
    for name, (text, goal) in PAGE_ROWS.items():
        row = rows[name]
        times = [f"{row[part] * 1e3:.0f} ms" for part in ("step_s", "memory_s", "limit_s")]
        speed = judged(row["speed"], f"{row['speed']:.2f}", least=goal)
        peaks = f"{row['peak'] / 1e6:.0f} / {row['memory_peak'] / 1e6:.0f} MB"
        lines.append(line(text, *times, speed, f"{goal:g}", peaks))
    return lines


class Table(NamedTuple):
    """Lines of a page, made of the results of these runs, all of which they need."""

    runs: tuple[str, ...]
    lines: Callable[[Results], list[str]]


# Tables by the name of their markers.
TABLES = {
    "two_links": Table(("two_links",), two_links),
    "links": Table(("links",), links),
    "loss": Table(("loss",), loss),
    "bare": Table(tuple(QUESTIONS), bare),
    "cpu_a_byte": Table(("cpu_a_byte",), cpu_a_byte),
    "drivers": Table(("drivers",), drivers),
    "sharing": Table(("sharing",), sharing),
    "page_store": Table(("zerocache_step",), page_store),
}
