"""The HOROVOD_* variables that say how a job works.

They are read at each ``init()``, as Horovod does, and not once in a process like others: a program
may change them between two incarnations. So they are read here; their defaults and meanings stand
in csrc/base/env_table.cc with those of all others, and a test holds the two together. A malformed
value is an error that names it; an empty one counts as not set. The variables that say which rank
this is stand in environment.py.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_TRUE = ("1", "true", "on", "yes")
_FALSE = ("0", "false", "off", "no")


@dataclass(frozen=True)
class Settings:
    """The values in force. Times in seconds."""

    fusion_bytes: int = 64 << 20
    cycle_seconds: float = 0.001
    cache_slots: int = 1024
    stall_warning_seconds: float = 60.0  # 0: no warning
    stall_shutdown_seconds: float = 0.0  # 0: never
    stall_check_disabled: bool = False
    timeline: str = ""
    timeline_marks_cycles: bool = False
    start_seconds: float = 300.0

    def alike(self) -> dict[str, int]:
        """Variables that all ranks must have alike."""
        return {
            "HOROVOD_FUSION_THRESHOLD": self.fusion_bytes,
            "HOROVOD_CACHE_CAPACITY": self.cache_slots,
        }


@dataclass(frozen=True)
class Variable:
    """A variable, the field of Settings and what is accepted."""

    name: str
    field: str
    read: Callable[[str], Any]
    accepted: str


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else -1
        if not least <= number <= most:
            raise ValueError
        return number

    return read


def _number(least: float, most: float, unit: float = 1.0) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not re.fullmatch(r"[0-9]*\.?[0-9]*(e[+-]?[0-9]+)?", text):
            raise ValueError
        number = float(text)  # "." and "" are ValueErrors by themselves
        if not least <= number <= most:
            raise ValueError
        return number * unit

    return read


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError
    return text.lower() in _TRUE


def _timeline(text: str) -> str:
    return "" if text.lower() == "dynamic" else text  # Horovod's word for: by start_timeline()


VARIABLES = (
    Variable(
        "HOROVOD_FUSION_THRESHOLD",
        "fusion_bytes",
        _whole(0, 1 << 50),
        "bytes, an integer from 0 to 2^50",
    ),
    Variable(
        "HOROVOD_CYCLE_TIME",
        "cycle_seconds",
        _number(0.0, 60_000.0, 1e-3),
        "milliseconds, a number from 0 to 60000",
    ),
    Variable(
        "HOROVOD_CACHE_CAPACITY",
        "cache_slots",
        _whole(0, 1 << 20),
        "an integer from 0 to 1048576",
    ),
    Variable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "stall_warning_seconds",
        _number(0.0, 1e9),
        "seconds, a number from 0 to 10^9",
    ),
    Variable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "stall_shutdown_seconds",
        _number(0.0, 1e9),
        "seconds, a number from 0 to 10^9",
    ),
    Variable(
        "HOROVOD_STALL_CHECK_DISABLE",
        "stall_check_disabled",
        _flag,
        "0, 1, false, true, off, on, no or yes",
    ),
    Variable(
        "HOROVOD_TIMELINE",
        "timeline",
        _timeline,
        "a file, or dynamic",
    ),
    Variable(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "timeline_marks_cycles",
        _flag,
        "0, 1, false, true, off, on, no or yes",
    ),
    Variable(
        "HOROVOD_START_TIMEOUT",
        "start_seconds",
        _number(1.0, 1e6),
        "seconds, a number from 1 to 10^6",
    ),
)


def settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings that variables ask for; those of this process by default.

    Raises:
        ValueError: a value is malformed; the text names the variable, the value and what is
            accepted.
    """
    given = os.environ if environment is None else environment
    found: dict[str, Any] = {}
    for variable in VARIABLES:
        text = given.get(variable.name, "").strip()
        if not text:
            continue
        try:
            found[variable.field] = variable.read(text)
        except ValueError:
            raise ValueError(
                f'environment variable {variable.name} is "{text}", but must be {variable.accepted}'
            ) from None
    if found.get("stall_check_disabled"):
        found |= {"stall_warning_seconds": 0.0, "stall_shutdown_seconds": 0.0}
    return Settings(**found)
