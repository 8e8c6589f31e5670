"""Sizes as people write them: "2GiB", and "/data/cache:64GiB" for a directory."""

import os
import re
from collections.abc import Iterable
from typing import TypeAlias

import torch

MAX_BYTES = 2**63 - 1
_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
}
_BY_FOLDED = {unit.lower(): factor for unit, factor in _UNITS.items()}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

Directories: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None"


def parse_bytes(size: str | int, name: str) -> int:
    """A number of bytes, from "2GiB" (1024^3 bytes each), "2GB" (1000^3) or a number.

    Args:
        size: what the user gave.
        name: of the argument, for the error's text.

    Raises:
        ValueError: it is no size, or not more than 0; says what one looks like.
        TypeError: it is neither text nor a whole number.
    """
    if isinstance(size, bool) or not isinstance(size, (str, int)):
        raise TypeError(f'{name}={size!r} is no size: give text such as "2GiB", or bytes')
    if isinstance(size, int):
        count = size
    else:
        found = _SIZE.fullmatch(size)
        unit = found[2].lower() if found else ""
        if found is None or unit not in _BY_FOLDED:
            raise ValueError(
                f'{name}={size!r} is no size: write a number and a unit, such as "512MiB", '
                f'"2GiB" or "1.5TB"'
            )
        count = int(float(found[1]) * _BY_FOLDED[unit])
    if count <= 0:
        raise ValueError(f"{name}={size!r} must be more than 0 bytes")
    if count > MAX_BYTES:
        raise ValueError(f"{name}={size!r} is more than can be addressed: {MAX_BYTES} bytes")
    return count


def parse_threads(threads: int | None) -> int:
    """How many the optimizer has; None: as many as torch."""
    if threads is None:
        return torch.get_num_threads()
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise TypeError(f"threads={threads!r} is no whole number, nor None: as many as torch has")
    if threads < 1:
        raise ValueError(f"threads={threads} must be at least 1")
    return threads


def existing_directories(places: Directories) -> list[tuple[str, int]]:
    """As parse_directories(), and absolute: the program may change its working directory. Raises
    ValueError for one that is not there, too."""
    found = parse_directories(places)
    for path, _ in found:
        if not os.path.exists(path):
            raise ValueError(
                f"ssd: the directory {path!r} does not exist: make it, or name another"
            )
    return [(os.path.abspath(path), size) for path, size in found]


def parse_directories(places: Directories) -> list[tuple[str, int]]:
    """Directories with the bytes that may be used in each, from "/data/cache:64GiB" or several.

    Raises:
        ValueError: a text is no directory with a size, or a directory is named twice.
        TypeError: it is neither text nor a list of texts.
    """
    if places is None:
        return []
    if isinstance(places, (str, os.PathLike)):
        places = [places]
    if not isinstance(places, Iterable):
        raise TypeError(f'ssd={places!r}: give text such as "/data/cache:64GiB", or a list of such')
    found: list[tuple[str, int]] = []
    for place in places:
        if not isinstance(place, (str, os.PathLike)):
            raise TypeError(f'ssd: {place!r} is no text such as "/data/cache:64GiB"')
        text = os.fspath(place)
        path, colon, size = text.rpartition(":")
        if not colon or not path or not size.strip():
            example = f"{text.rstrip(':') or '/data/cache'}:64GiB"
            raise ValueError(
                f"ssd={text!r} does not say how many bytes may be used there: write the "
                f'directory, a colon and a size, such as "{example}"'
            )
        found.append((path, parse_bytes(size, f"ssd {path!r}: size")))
    paths = [os.path.realpath(path) for path, _ in found]
    for (given, _), path in zip(found, paths, strict=True):
        if paths.count(path) > 1:
            raise ValueError(f"ssd: the directory {given!r} is named twice")
    return found


def format_bytes(count: float) -> str:
    """ "1.50 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
