"""Rows of the tables that report.py puts into pages."""

from __future__ import annotations

from typing import Any


def head(*cells: str, words: int = 1) -> list[str]:
    """A table's head: the first columns are words, the others are numbers."""
    return [f"| {' | '.join(cells)} |", f"|{'---|' * words}{'--:|' * (len(cells) - words)}"]


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def judged(
    value: float, text: str, *, least: float | None = None, most: float | None = None
) -> str:
    met = (least is None or value >= least) and (most is None or value <= most)
    return text if met else f"**{text}**"


def pair(result: Any, kind: str, size: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """(gloo's row, taco's row) of one case."""
    rows = {
        row["backend"]: row
        for row in (result or {}).get("rows", [])
        if row["collective"] == kind and row["bytes"] == size
    }
    return (rows["gloo"], rows["taco"]) if {"gloo", "taco"} <= rows.keys() else None
