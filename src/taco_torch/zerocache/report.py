"""Reports for people of what a cache has done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from taco_torch.zerocache.sizes import format_bytes
from taco_torch.zerocache.step_plan import moved_lines


class Whole(NamedTuple):
    """The bytes that several ranks hold together, and which of them this is."""

    rank: int
    ranks: int
    parameter_bytes: int
    state_bytes: int


def as_text(
    stats: Mapping[str, Any], step: Mapping[str, Any] | None = None, whole: Whole | None = None
) -> str:
    """Lines about tiers, ways, hits and stalls; and of what training steps move beside the least
    that they could, where ``step`` (``_C.zerocache.last_run``) has that. All of it is this rank's;
    where there are several, the ``whole`` stands beside its share."""
    kept = [
        f"{kind} {format_bytes(own)}"
        + ("" if together is None else f" of {format_bytes(together)}")
        for kind, own, together in (
            ("parameters", stats["parameter_bytes"], whole and whole.parameter_bytes),
            ("optimizer state", stats["state_bytes"], whole and whole.state_bytes),
        )
    ]
    lines = [
        ("" if whole is None else f"rank {whole.rank} of {whole.ranks} keeps ") + ", ".join(kept),
        "",
        f"{'tier':16}{'capacity':>14}{'resident':>14}",
    ]
    for name, tier in stats["tiers"].items():
        if tier["capacity"]:
            lines.append(
                f"{name:16}{format_bytes(tier['capacity']):>14}{format_bytes(tier['resident']):>14}"
            )
    lines += ["", f"{'way':16}{'moved':>14}{'at':>16}{'busy':>10}{'waited for':>12}"]
    for name, way in stats["ways"].items():
        if way["copies"]:
            speed = f"{format_bytes(way['bytes_per_second'])}/s"
            lines.append(
                f"{name:16}{format_bytes(way['bytes']):>14}{speed:>16}"
                f"{way['busy_s']:>8.2f} s{way['stalled_s']:>10.2f} s"
            )
    if "gathers" in stats:
        gathers = stats["gathers"]
        lines.append(
            f"gathered from other ranks: {gathers['stripes']:,} stripes, {gathers['ahead']:,} of "
            f"them ahead; waited {gathers['waited_s']:.2f} s"
        )
    if step is not None:
        lines += ["", *moved_lines(step["moved"], step["least"])]
    moved = stats["hits"] + stats["misses"]
    share = f"{100 * stats['hits'] / moved:.1f}%" if moved else "none were needed"
    lines += [
        "",
        f"pages that were back in time: {share} of {moved:,}",
        f"waited for pages: {stats['stalled_s']:.2f} s in {stats['uses']:,} uses",
    ]
    return "\n".join(lines)
