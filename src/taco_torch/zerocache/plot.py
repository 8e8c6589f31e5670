"""A picture of what lay where during a step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

POINTS = 600
TIERS = {"device": "device", "host": "host memory", "ssd": "disk"}
COLORS = {
    "parameters": "#e07a5f",
    "master": "#b5838d",
    "gradients": "#9d8189",
    "exp_avg": "#f2cc8f",
    "exp_avg_sq": "#81b29a",
    "momentum_buffer": "#f2cc8f",
    "moments": "#81b29a",
}
PHASES = {"forward": "#f4f1de", "backward": "#e8e4d0", "step": "#dce6e2"}
WAIT, CAP = "#c1121f", "#3d405b"
UNITS = [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")]


def draw(
    found: Mapping[str, Any], tiers: Mapping[str, Mapping[str, int]], path: str | os.PathLike[str]
) -> None:
    """Saves the picture of one run.

    Args:
        found: what ``_C.zerocache.residency_over_run`` returns.
        tiers: capacities by tier, as in ``ZeroCache.stats()``.
        path: where to; its ending says in which format.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("ZeroCache.plot() needs matplotlib: pip install matplotlib") from None
    shown = [tier for tier in TIERS if tiers[tier]["capacity"] > 0]
    figure = Figure(figsize=(8, 0.7 + 1.6 * len(shown)), layout="constrained")
    rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    seconds = found["seconds"]
    times = [seconds * point / (POINTS - 1) for point in range(POINTS)]
    for axes, tier in zip(rows, shown, strict=True):
        _draw_tier(axes, times, found["residency"][tier], tiers[tier]["capacity"])
        axes.set_title(TIERS[tier], fontsize=9, loc="left")
        for name, begin, end in found["phases"]:
            axes.axvspan(begin, end, color=PHASES[name], zorder=0, linewidth=0)
        # Waiting, as a line along the bottom.
        spans = [(begin, end - begin) for _, begin, end in found["waits"]]
        axes.broken_barh(spans, (0, 0.04), color=WAIT, transform=axes.get_xaxis_transform())
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, seconds)
    for name, begin, end in found["phases"]:
        if end - begin > 0.08 * seconds:
            rows[0].annotate(
                name, ((begin + end) / 2, 1.02), xycoords=rows[0].get_xaxis_transform(),
                ha="center", fontsize=8, color=CAP,
            )  # fmt: skip
    rows[-1].set_xlabel(f"seconds of step {found['number']}; red: somebody waits for pages")
    legend: dict[str, Any] = {}
    for axes in rows:
        of_tier, labels = axes.get_legend_handles_labels()
        legend.update(zip(labels, of_tier, strict=True))
    names, handles = list(legend), list(legend.values())
    figure.legend(handles, names, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def _draw_tier(
    axes: Any, times: list[float], kinds: Mapping[str, list[int]], capacity: int
) -> None:
    most = max(max((sum(now) for now in zip(*kinds.values(), strict=True)), default=0), 1)
    # A disk far larger than what lies there would show hardly anything but free space.
    top = capacity if capacity <= 1.5 * most else most
    unit, name = next((each for each in UNITS if top >= each[0]), (1, "B"))
    heights = [[count / unit for count in kinds[kind]] for kind in kinds]
    axes.stackplot(
        times, *heights, labels=list(kinds), colors=[COLORS.get(kind, "#999999") for kind in kinds]
    )
    if top == capacity:
        axes.axhline(capacity / unit, color=CAP, linestyle="--", linewidth=0.8, label="cap")
    axes.set_ylim(0, 1.1 * top / unit)
    axes.set_ylabel(name, fontsize=8)
    axes.tick_params(labelsize=8)
