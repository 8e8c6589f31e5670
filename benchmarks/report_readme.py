"""README.md's table: a choice of the figures that docs/benchmarks.md has."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from launch import show_time
from report_cells import line, pair

Load = Callable[[str], Any]  # of a run's result, None where it has left none
MIB = 1 << 20


class Collective(NamedTuple):
    """One of collectives.py beside gloo, by the run that has it."""

    text: str
    run: str
    kind: str
    bytes: int


COLLECTIVES = [
    Collective("one host, all_reduce 8 B", "one_host", "all_reduce", 8),
    Collective("one host, all_reduce 32 MiB", "one_host", "all_reduce", 32 * MIB),
    Collective("one host, all_gather 32 MiB", "one_host", "all_gather", 32 * MIB),
    Collective("4 hosts, no rate limit, all_reduce 40 MiB", "four_hosts", "all_reduce", 40 * MIB),
    Collective(
        "4 hosts at 1 Gbit/s, all_reduce 40 MiB", "four_hosts_1gbit", "all_reduce", 40 * MIB
    ),
    Collective(
        "4 hosts at 1 Gbit/s, all_to_all 40 MiB", "four_hosts_1gbit", "all_to_all", 40 * MIB
    ),
    Collective("4 hosts at 1 Gbit/s, broadcast 40 MiB", "four_hosts_1gbit", "broadcast", 40 * MIB),
    Collective(
        "2 hosts x 2 ranks at 1 Gbit/s, all_reduce 40 MiB",
        "two_by_two_1gbit",
        "all_reduce",
        40 * MIB,
    ),
]
RUNS = (
    *dict.fromkeys(each.run for each in COLLECTIVES),
    "scaling_all_reduce",
    "two_links",
    "zerocache_step",
)
LESS = {
    "2d_float16": "the same, gradients in 16 bits",
    "topk": "the same, one element in a hundred (TopK)",
}


def show_ratio(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def compared(text: str, baseline: float, ours: float, run: str, limit: float | None = None) -> str:
    """A row of times in seconds; `limit`: what the wire needs, where it has a rate."""
    text += f" (the wire needs {show_time(limit)})" if limit else ""
    cells = (text, show_time(baseline), show_time(ours), show_ratio(baseline / ours), f"`{run}`")
    return line(*cells)


def readme_lines(load: Load) -> list[str]:
    lines = ["| what | baseline | taco | ratio | run |", "|---|--:|--:|--:|---|"]
    for each in COLLECTIVES:
        found = pair(load(each.run), each.kind, each.bytes)
        assert found is not None, f"{each.run} has no {each.kind} of {each.bytes} bytes by both"
        gloo, taco = found
        limit = taco["limit_s"] if each.run == "four_hosts_1gbit" else None
        lines.append(compared(each.text, gloo["median_s"], taco["median_s"], each.run, limit))
    choices = load("scaling_all_reduce")["choices"]
    for name, text in LESS.items():
        times = (choices[which]["seconds"] for which in ("gloo", name))
        lines.append(compared(text, *times, "scaling_all_reduce"))
    by_links = load("two_links")["times"]["all_reduce"]
    one, two = (statistics.median(chain(*by_links[count])) for count in "12")
    lines.append(compared("all_reduce 40 MiB by one link (taco) and by two", one, two, "two_links"))
    step = load("zerocache_step")["rows"]["half_in_backward"]
    text = "step of a GPT, half of its state on disk (baseline: torch in memory)"
    lines.append(compared(text, step["memory_s"], step["step_s"], "zerocache_step"))
    peaks = (step["memory_peak"], step["peak"])
    cells = (f"{peak / 1e6:,.0f} MB" for peak in peaks)
    ratio = show_ratio(peaks[0] / peaks[1])
    lines.append(line("peak memory of that step", *cells, ratio, "`zerocache_step`"))
    return lines
