"""Results of scaling.py for people: tables, a plot, and rows for report.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from choices import CHOICES
from launch import show_time, where

# At most this share of gloo's time, for an all_reduce of 40 MiB between 2 hosts x 2 ranks.
ALL_REDUCE_GOALS = {"2d": 0.69, "2d_float16": 0.36, "topk": 0.08}
# At least this many times as fast a step as gloo's: 90% of what the bytes saved would give, with
# 8 bytes for an element that TopK sends.
STEP_SHARE = 0.9
STEP_LIMITS = {
    3.67: {"2d": 1.35, "2d_float16": 2.10, "topk": 4.45},
    1.4: {"2d": 1.24, "2d_float16": 1.64, "topk": 2.36},
    0.64: {"2d": 1.15, "2d_float16": 1.35, "topk": 1.63},
}
SCALING_GOAL = 0.95  # of linear, VGG16 by the best choice
Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]


def _megabytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f} MB"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _sent(one: Row) -> list[str]:
    return [_megabytes(one.get("host_bytes")), _megabytes(one.get("host_bytes_limit"))]


def all_reduce_table(result: Row) -> Table:
    heads = ["choice", "time", "wire limit", "of gloo's", "goal", "a host sends", "arithmetic"]
    rows = []
    for name, one in result["choices"].items():
        goal = ALL_REDUCE_GOALS.get(name)
        cells = [CHOICES[name].title, show_time(one["seconds"]), show_time(one["limit_s"])]
        cells += [_times(one.get("of_gloo")), f"<= {goal:g}x" if goal else "-", *_sent(one)]
        rows.append(cells)
    return heads, rows


def models_table(result: Row) -> Table:
    heads = ["model", "gradients", "alone", "choice", "step", "linear scaling", "overlap limit"]
    heads += ["plain limit", "of gloo's", "a host sends", "arithmetic"]
    rows = []
    for row in result["models"]:
        first = [row["model"], f"{row['gradient_bytes'] / 1e6:.1f} MB", show_time(row["single_s"])]
        for name, one in row["choices"].items():
            cells = [*first, CHOICES[name].title, show_time(one["seconds"])]
            cells += [_percent(one["scaling"]), _percent(one.get("scaling_overlap"))]
            cells += [_percent(one.get("scaling_plain")), _times(one.get("of_gloo")), *_sent(one)]
            rows.append(cells)
            first = ["", "", ""]
    return heads, rows


def step_limit_of(ratio: float, name: str, one: Row) -> float | None:
    """The goal's own limit where it names one, else that of the bytes really sent."""
    return STEP_LIMITS.get(ratio, {}).get(name) or one.get("speedup_limit")


def ratios_table(result: Row) -> Table:
    heads = ["communication / computation", "alone", "choice", "step", "gloo's / step", "limit"]
    heads += ["share of limit", "a host sends", "arithmetic"]
    rows = []
    for row in result["ratios"]:
        first = [f"{row['ratio']:g}", show_time(row["single_s"])]
        for name, one in row["choices"].items():
            limit, speedup = step_limit_of(row["ratio"], name, one), one.get("speedup")
            cells = [*first, CHOICES[name].title, show_time(one["seconds"]), _times(speedup)]
            cells += [_times(limit), _percent(speedup / limit if limit and speedup else None)]
            rows.append([*cells, *_sent(one)])
            first = ["", ""]
    return heads, rows


def table_of(result: Row) -> Table:
    if "models" in result:
        return models_table(result)
    return ratios_table(result) if "ratios" in result else all_reduce_table(result)


def show(result: Row, arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    scale = f", 1/{arguments.scale:g} of the real sizes" if arguments.scale > 1 else ""
    title = f"{where(arguments)}{scale}; TCP {result['machine']['tcp']}"
    made = RichTable(title=title)
    heads, rows = table_of(result)
    for heading in heads:
        made.add_column(heading, justify="left" if heading in ("model", "choice") else "right")
    for cells in rows:
        made.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 150).print(made)
    for name, reason in result["left_out"].items():
        print(f"left out: {CHOICES[name].title}: {reason}")


def _bars(result: Row) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """(group of bars, values by choice, limits by choice)"""
    if "models" in result:
        for row in result["models"]:
            values = {name: 100 * one["scaling"] for name, one in row["choices"].items()}
            limits = {
                name: 100 * one["scaling_overlap"]
                for name, one in row["choices"].items()
                if "scaling_overlap" in one
            }
            yield row["model"], values, limits
    elif "ratios" in result:
        for row in result["ratios"]:
            values, limits = {}, {}
            for name, one in row["choices"].items():
                values[name] = one["speedup"] or 0.0
                limit = step_limit_of(row["ratio"], name, one)
                if limit:
                    limits[name] = limit
            yield f"{row['ratio']:g}", values, limits
    else:
        values = {name: 1e3 * one["seconds"] for name, one in result["choices"].items()}
        limits = {
            name: 1e3 * one["limit_s"] for name, one in result["choices"].items() if one["limit_s"]
        }
        yield "all_reduce", values, limits


def plot(result: Row, path: Path) -> None:
    """A bar for each choice, its limit a line above it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = list(_bars(result))
    names = list(groups[0][1])
    figure, axes = plt.subplots(figsize=(1.5 + 2.6 * len(groups), 3.6), layout="constrained")
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [index + (number - (len(names) - 1) / 2) * width for index in range(len(groups))]
        heights = [values[name] for _, values, _ in groups]
        axes.bar(places, heights, 0.9 * width, label=CHOICES[name].title)
        for place, (_, _, limits) in zip(places, groups, strict=True):
            if name in limits:
                ends = place - 0.45 * width, place + 0.45 * width
                axes.plot(ends, [limits[name]] * 2, color="black", linewidth=1.2)
    axes.set_xticks(range(len(groups)), [label for label, _, _ in groups])
    if "models" in result:
        axes.set_ylabel("% of linear scaling")
    elif "ratios" in result:
        axes.set_ylabel("times as fast as gloo")
        axes.set_xlabel("communication / computation")
    else:
        axes.set_ylabel("milliseconds")
    axes.set_title("black lines: limits by arithmetic", fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def markdown(result: Row) -> list[str]:
    """The table as rows of a page."""
    heads, rows = table_of(result)
    marks = ["---" if heading in ("model", "choice") else "--:" for heading in heads]
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(marks)}|"]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    missing = [f"{CHOICES[name].title}: {why}." for name, why in result["left_out"].items()]
    return [*lines, "", *(["Left out: " + " ".join(missing), ""] if missing else [])]
