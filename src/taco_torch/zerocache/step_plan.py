"""A plan: what a training step will take, as a simulation of the scheduler finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taco_torch._extension import _C
from taco_torch.zerocache.sizes import format_bytes, parse_bytes

WAYS = ("host to device", "device to host", "ssd to host", "host to ssd")


@dataclass(frozen=True)
class StepPlan:
    """One step of a training loop, once the order of its uses is known.

    Attributes:
        step_s: seconds that it will take.
        compute_s: of these, seconds in which nothing is waited for.
        moved: bytes by way ("ssd to host"), each step.
        least: bytes by way that no scheduler could move less than (lower bounds; together they may
            be out of reach).
        hit_rate: share of the pages that had left since they were used which are back in time;
            1 if none is needed.
        measured_s: seconds that the last step took, with the cache's own sizes; None where nothing
            has been run.
    """

    step_s: float
    compute_s: float
    moved: Mapping[str, float]
    least: Mapping[str, float]
    hit_rate: float
    measured_s: float | None = None

    @property
    def waiting_s(self) -> float:
        """Seconds of a step in which somebody waits for pages."""
        return self.step_s - self.compute_s

    def __str__(self) -> str:
        measured = f" (measured: {self.measured_s:.3g} s)" if self.measured_s is not None else ""
        lines = [
            f"a step takes {self.step_s:.3g} s{measured}: {self.compute_s:.3g} s of computing and "
            f"{self.waiting_s:.3g} s of waiting for pages",
            *moved_lines(self.moved, self.least),
            f"pages that are back in time: {100 * self.hit_rate:.1f}%",
        ]
        return "\n".join(lines)


def moved_lines(moved: Mapping[str, float], least: Mapping[str, float]) -> list[str]:
    """A table of what moves in a step beside the least that could."""
    rows = [
        f"{way:16}{format_bytes(moved[way]):>14}{format_bytes(least[way]):>18}"
        f"{f'{moved[way] / least[way]:.2f}x' if least[way] else '':>9}"
        for way in WAYS
        if moved[way] or least[way]
    ]
    return [f"{'way':16}{'each step':>14}{'least possible':>18}", *rows] if rows else []


def step_plan(found: Mapping[str, Any], measured_s: float | None = None) -> StepPlan:
    """The plan made of what ``_C.zerocache.PlannedProgram.predict`` returns."""
    needed = found["hits"] + found["misses"]
    return StepPlan(
        step_s=found["step_s"],
        compute_s=found["compute_s"],
        moved=found["moved"],
        least=found["least"],
        hit_rate=found["hits"] / needed if needed else 1.0,
        measured_s=measured_s,
    )


def plan_of_run(
    store: Any,
    tiers: Mapping[str, Mapping[str, int]],
    ways: Mapping[str, Mapping[str, float]],
    caps: Mapping[str, str | int | None],
) -> StepPlan:
    """The last training step once more, with other capacities where ``caps`` has them."""
    run = _C.zerocache.last_run(store, "train")
    if run is None or run["number"] < 2:
        raise RuntimeError(
            "no step to plan with: train two steps first (the first teaches the order of uses, the "
            "second is measured); a training step ends with optimizer.step()"
        )
    room = []
    for tier, size in caps.items():
        without = tier == "ssd" and size == 0
        given = 0 if without else None if size is None else parse_bytes(size, tier)
        room.append(tiers[tier]["capacity"] if given is None else given)
    speeds = [ways[way]["bytes_per_second"] for way in WAYS]
    found = _C.zerocache.program_of_run(store, "train").predict(*room, speeds)
    return step_plan(found, run["seconds"])
