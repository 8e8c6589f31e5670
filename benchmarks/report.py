"""Puts the figures of the last `make bench` between the markers of pages: a table for each question
into docs/benchmarks.md, every figure beside gloo into docs/benchmarks-tables.md, a choice of them
into README.md. A table whose runs have left nothing in out/ stays as it is.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from choices import CHOICES
from fsdp_step import table_cells
from launch import KINDS, show_bytes, show_time
from report_cells import head, line, pair
from report_harp import TABLES as HARP_TABLES
from report_readme import RUNS as README_RUNS
from report_readme import readme_lines
from scaling_view import ALL_REDUCE_GOALS, SCALING_GOAL, STEP_LIMITS, STEP_SHARE, markdown

TOP = Path(__file__).parents[1]
SUMMARY = TOP / "docs" / "benchmarks.md"
TABLES = TOP / "docs" / "benchmarks-tables.md"
README = TOP / "README.md"
TITLES = {
    "one_host": "One host, 4 ranks, shared memory",
    "one_host_unbound": "One host, 4 ranks, shared memory, left to the scheduler",
    "one_host_udp": "One host, 4 ranks, packets forced (`TACO_TRANSPORT=udp`)",
    "four_hosts": "4 hosts, no rate limit",
    "four_hosts_1gbit": "4 hosts at 1 Gbit/s",
    "four_hosts_1gbit_loss": "4 hosts at 1 Gbit/s, 1% loss",
    "two_by_two_1gbit": "2 hosts with 2 ranks each at 1 Gbit/s",
}
SCALING_TITLES = {
    "scaling_all_reduce": "all_reduce of 40 MiB, 2 hosts x 2 ranks at 1 Gbit/s",
    "scaling_ratios": "DDP step, 40 MiB of gradients, 2 hosts x 2 ranks at 1 Gbit/s",
    "scaling_vgg16": "VGG16, 2 hosts x 2 ranks, all sizes 1/25: 22 MB at 1 Gbit/s for 553 MB at 25",
    "scaling_models": "Other models, likewise",
}
MIB = 1 << 20
# Text, run, collective, bytes, goal: gloo/taco at least ("ratio"), or taco/limit at most ("limit")
# and, as a second condition, taco/gloo at most MAX_OF_GLOO.
MAX_OF_GLOO = 1.02
GOALS = [
    ("one host, all_reduce 32 MiB", "one_host", "all_reduce", 32 * MIB, ("ratio", 5.0)),
    (
        "one host, all_reduce 32 MiB, unbound",
        "one_host_unbound",
        "all_reduce",
        32 * MIB,
        ("ratio", 4.0),
    ),
    ("one host, all_gather 32 MiB", "one_host", "all_gather", 32 * MIB, ("ratio", 5.0)),
    ("one host, all_to_all 32 MiB", "one_host", "all_to_all", 32 * MIB, ("ratio", 2.5)),
    ("one host, all_reduce 8 B", "one_host", "all_reduce", 8, ("ratio", 10.0)),
    ("one host, all_reduce 1 KiB", "one_host", "all_reduce", 1024, ("ratio", 10.0)),
    ("one host, all_gather 16 B", "one_host", "all_gather", 16, ("ratio", 10.0)),
    ("one host, all_gather 1 KiB", "one_host", "all_gather", 1024, ("ratio", 10.0)),
    ("one host, barrier", "one_host", "barrier", 0, ("ratio", 10.0)),
    ("4 hosts, all_reduce 8 B", "four_hosts", "all_reduce", 8, ("ratio", 5.0)),
    ("4 hosts, all_reduce 1 KiB", "four_hosts", "all_reduce", 1024, ("ratio", 5.0)),
    ("4 hosts, all_gather 16 B", "four_hosts", "all_gather", 16, ("ratio", 5.0)),
    ("4 hosts, all_gather 1 KiB", "four_hosts", "all_gather", 1024, ("ratio", 5.0)),
    ("4 hosts, barrier", "four_hosts", "barrier", 0, ("ratio", 5.0)),
    ("4 hosts, all_reduce 40 MiB", "four_hosts", "all_reduce", 40 * MIB, ("ratio", 2.0)),
    ("4 hosts, all_gather 40 MiB", "four_hosts", "all_gather", 40 * MIB, ("ratio", 2.0)),
    ("4 hosts, all_to_all 40 MiB", "four_hosts", "all_to_all", 40 * MIB, ("ratio", 1.3)),
    *(
        (f"1 Gbit/s, {kind} {size} MiB", "four_hosts_1gbit", kind, size * MIB, ("limit", 1.03))
        for kind in KINDS
        if kind != "barrier"
        for size in (1, 40)
    ),
    (
        "2 hosts x 2 ranks at 1 Gbit/s, all_reduce 40 MiB",
        "two_by_two_1gbit",
        "all_reduce",
        40 * MIB,
        ("ratio", 1.4),
    ),
]


def load(name: str) -> Any:
    path = TOP / "out" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def provenance(result: Any) -> str:
    """The machine that a run's figures were measured on."""
    host = result["machine"]
    copying = result.get("copy_bytes_per_s")
    parts = [host["cpu"], f"TCP {host['tcp']}"]
    parts += [f"copying {copying / 1e9:.1f} GB/s"] if copying else []
    return f"{', '.join(parts)}, load {host['load']:.1f} at the end."


class Condition(NamedTuple):
    """One thing that a goal demands: what was measured and what it must be, in words."""

    measured: str
    goal: str
    met: bool


def at_most(name: str, measured: float, most: float) -> Condition:
    return Condition(f"{name} {measured:.3f}", f"<= {most:g}", measured <= most)


def at_least(name: str, measured: float, least: float) -> Condition:
    return Condition(f"{name} {measured:.3f}", f">= {least:.3g}", measured >= least)


def goal_line(text: str, gloo: float, taco: float, conditions: list[Condition]) -> str:
    """A row of the goals, with times in seconds. It shows the conditions that are not met; where
    all are met, the first."""
    failed = [condition for condition in conditions if not condition.met]
    shown = failed or conditions[:1]
    cells = [text, show_time(gloo), show_time(taco)]
    cells += [", ".join(one.measured for one in shown), ", ".join(one.goal for one in shown)]
    return line(*cells, "no" if failed else "yes")


def collective_goals(*runs: str) -> list[str]:
    lines = []
    for text, run, kind, size, (what, value) in GOALS:
        found = pair(load(run), kind, size) if run in runs else None
        if not found:
            continue
        gloo, taco = (row["median_s"] for row in found)
        if what == "ratio":
            conditions = [
                Condition(f"gloo/taco {gloo / taco:.2f}", f">= {value:g}", gloo / taco >= value)
            ]
        else:
            conditions = [
                at_most("taco/limit", found[1]["times_limit"], value),
                at_most("taco/gloo", taco / gloo, MAX_OF_GLOO),
            ]
        lines.append(goal_line(text, gloo, taco, conditions))
    return lines


def starting_goals() -> list[str]:
    """init_process_group and the first all_reduce: no later than gloo, and within 5 s."""
    rows = {(row["world"], row["backend"]): row["total_s"] for row in load("init_time") or []}
    lines = []
    for world in sorted({world for world, _ in rows}):
        gloo, taco = rows[world, "gloo"], rows[world, "taco"]
        conditions = [
            at_most("taco/gloo", taco / gloo, 1.0),
            Condition(f"{taco:.2f} s", "<= 5 s", taco <= 5.0),
        ]
        lines.append(goal_line(f"init and first all_reduce, {world} ranks", gloo, taco, conditions))
    return lines


def stepping_goals() -> list[str]:
    lines = []
    for row in (load("ddp_step_1gbit") or {"rows": []})["rows"]:
        gloo, taco = row["step_s"]["gloo"], row["step_s"]["taco"]
        conditions = [at_most("taco/ideal", taco / row["goal_s"], 1.05)]
        lines.append(goal_line(f"DDP step, {row['model']}, 1 Gbit/s", gloo, taco, conditions))
    return lines


def sending_less_goals() -> list[str]:
    """Goals for what lightcc saves, each choice beside gloo in one run."""
    lines = []
    choices = (load("scaling_all_reduce") or {"choices": {}})["choices"]
    for name, most in ALL_REDUCE_GOALS.items():
        if {"gloo", name} <= choices.keys():
            gloo, taco = choices["gloo"]["seconds"], choices[name]["seconds"]
            conditions = [at_most("taco/gloo", choices[name]["of_gloo"], most)]
            text = f"all_reduce 40 MiB, {CHOICES[name].title}"
            lines.append(goal_line(text, gloo, taco, conditions))
    for row in (load("scaling_ratios") or {"ratios": []})["ratios"]:
        choices = row["choices"]
        for name, limit in STEP_LIMITS.get(row["ratio"], {}).items():
            if not {"gloo", name} <= choices.keys():
                continue
            gloo, taco = choices["gloo"]["seconds"], choices[name]["seconds"]
            conditions = [at_least("gloo/taco", choices[name]["speedup"], STEP_SHARE * limit)]
            text = f"DDP step, communication/computation {row['ratio']:g}, {CHOICES[name].title}"
            lines.append(goal_line(text, gloo, taco, conditions))
    for row in (load("scaling_vgg16") or {"models": []})["models"]:
        choices = row["choices"]
        best = max(choices, key=lambda name: choices[name]["scaling"])
        if "gloo" in choices and best != "gloo":
            gloo, taco = choices["gloo"]["seconds"], choices[best]["seconds"]
            conditions = [at_least("of linear", choices[best]["scaling"], SCALING_GOAL)]
            lines.append(goal_line(f"VGG16, {CHOICES[best].title}", gloo, taco, conditions))
    return lines


def sending_less_lines() -> list[str]:
    lines: list[str] = []
    for name, title in SCALING_TITLES.items():
        result = load(name)
        if result:
            lines += [f"## Sending less: {title}", "", provenance(result), "", *markdown(result)]
    return lines


def collective_lines(name: str) -> list[str]:
    result = load(name)
    if not result:
        return []
    lines = [f"## {TITLES[name]}", "", provenance(result), ""]
    lines += ["| collective | size | gloo | p90 | taco | p90 | limit | taco/limit | gloo/taco |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    cases = dict.fromkeys((row["collective"], row["bytes"]) for row in result["rows"])
    for kind, size in cases:
        found = pair(result, kind, size)
        if not found:
            continue
        gloo, taco = found
        cells = [kind, show_bytes(size), show_time(gloo["median_s"]), show_time(gloo["p90_s"])]
        cells += [show_time(taco["median_s"]), show_time(taco["p90_s"])]
        cells += [show_time(taco["limit_s"])]
        cells += [f"{taco['times_limit']:.2f}" if taco["limit_s"] else "-"]
        cells += [f"{gloo['median_s'] / taco['median_s']:.2f}x"]
        lines.append(line(*cells))
    return [*lines, ""]


def planner_lines() -> list[str]:
    lines: list[str] = []
    for name, where in (("planner", "shared memory"), ("planner_udp", "packets")):
        result = load(name)
        if not result:
            continue
        rows = result["rows"]
        within = sum(row["ratio"] <= 1.1 for row in rows)
        lines += [
            f"One host, {where}, costs from {result['costs']}: {within} of {len(rows)} choices are",
            "within 10% of the best algorithm forced in the same run. The ratio is the median over",
            "paired turns.",
            "",
            "| collective | size | planner's choice | | best | | ratio |",
            "|---|--:|---|--:|---|--:|--:|",
        ]
        for row in rows:
            cells = [row["collective"], show_bytes(row["bytes"])]
            for algorithm in (row["choice"], row["best"]):
                cells += [algorithm, show_time(row["times_s"][algorithm])]
            lines.append(line(*cells, f"{row['ratio']:.2f}"))
        lines.append("")
    return ["## The planner's choices", "", *lines] if lines else []


def other_lines() -> list[str]:
    lines: list[str] = []
    for name, where in (("idle", "one host"), ("idle_four_hosts", "4 hosts")):
        for row in (load(name) or {"rows": []})["rows"]:
            shares = ", ".join(f"{share:.2%}" for share in row["waiting"][1:])
            lines.append(f"- Waiting ranks, {where}, {row['backend']}: {shares} of a core.")
    for row in load("init_time") or []:
        lines.append(
            f"- {row['world']} ranks, {row['backend']}: init {row['init_s']:.2f} s, "
            f"with the first all_reduce {row['total_s']:.2f} s."
        )
    steps = load("ddp_step_1gbit")
    if steps:
        lines += [
            "",
            "| DDP step, 4 hosts at 1 Gbit/s | gradients | compute | gloo | taco | goal |",
        ]
        lines += ["|---|--:|--:|--:|--:|--:|"]
        for row in steps["rows"]:
            times = [row["compute_s"], row["step_s"]["gloo"], row["step_s"]["taco"], row["goal_s"]]
            cells = [row["model"], f"{row['gradient_bytes'] / 1e6:.0f} MB", *map(show_time, times)]
            lines.append(line(*cells))
    return [*lines, *fsdp_lines()]


def fsdp_lines() -> list[str]:
    result = load("fsdp_step_1gbit")
    if not result:
        return []
    heads = "| FSDP2 step, 4 hosts at 1 Gbit/s | parameters | compute | choice | step | limit |"
    lines = ["", f"{heads} step/limit | gloo/step |", "|---|--:|--:|---|--:|--:|--:|--:|"]
    return [*lines, *(line(*cells) for cells in table_cells(result["rows"]))]


def question(title: str, runs: str, goals: list[str]) -> list[str]:
    """A question's table, under the command that answers it."""
    if not goals:
        return []
    lines = [f"### {title}", "", f"`python benchmarks/run_all.py --only {runs}`", ""]
    lines += ["| case | gloo | taco | measured | goal | |", "|---|--:|--:|--:|--:|---|"]
    return [*lines, *goals, ""]


def summary_lines() -> list[str]:
    one_host = collective_goals("one_host", "one_host_unbound")
    wire = collective_goals("four_hosts_1gbit", "two_by_two_1gbit")
    wire = [row for row in wire if not (" 1 MiB " in row and row.endswith(" yes |"))]
    scaling = "scaling_all_reduce,scaling_ratios,scaling_vgg16"
    return [
        *question("Inside one host", "one_host,one_host_unbound", one_host),
        *question("Between hosts, no rate limit", "four_hosts", collective_goals("four_hosts")),
        *question("Between hosts at 1 Gbit/s", "four_hosts_1gbit,two_by_two_1gbit", wire),
        *question(
            "Starting, and a step of DDP",
            "init_time,ddp_step_1gbit",
            [*starting_goals(), *stepping_goals()],
        ),
        *question("Sending less", scaling, sending_less_goals()),
    ]


def table_lines() -> list[str]:
    lines = ["## Waiting, starting, stepping", "", *other_lines(), "", *sending_less_lines()]
    for name in TITLES:
        lines += collective_lines(name)
    return [*lines, *planner_lines()]


def builds_lines() -> list[str]:
    """The build and the day of each run."""
    by_build: dict[tuple[str, str], list[str]] = {}
    for name, build in (load("builds") or {}).items():
        by_build.setdefault((build["day"], build["commit"]), []).append(f"`{name}`")
    lines = head("day", "commit", "runs", words=3)
    return [*lines, *(line(*build, ", ".join(by_build[build])) for build in sorted(by_build))]


def put(page: Path, name: str, lines: list[str]) -> None:
    """Replaces what is between the markers of that name."""
    text = page.read_text()
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    if begin not in text or end not in text:
        sys.exit(f"{page.name} has lost its markers {begin} and {end}")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    figures = "\n".join(lines).strip("\n")
    page.write_text(pattern.sub(lambda _: f"{begin}\n\n{figures}\n\n{end}", text))
    print(f"{name} of out/: {page.relative_to(TOP)}")


def main() -> None:
    put(SUMMARY, "figures", summary_lines())
    put(TABLES, "figures", table_lines())
    for name, table in HARP_TABLES.items():
        results = {run: found for run in table.runs if (found := load(run)) is not None}
        if len(results) == len(table.runs):
            put(SUMMARY, name, table.lines(results))
        elif results:
            missing = [run for run in table.runs if run not in results]
            print(f"{name} stays as it is: {', '.join(missing)} left nothing in out/")
    put(SUMMARY, "builds", builds_lines())
    if all(load(run) is not None for run in README_RUNS):
        put(README, "figures", readme_lines(load))
    else:
        print(
            f"README.md stays as it is: not all of {', '.join(README_RUNS)} left something in out/"
        )


if __name__ == "__main__":
    main()
