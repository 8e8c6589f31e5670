"""A bar for what takes long, where somebody looks: on a terminal, and if tqdm is installed."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

EVERY_S = 0.1


def _is_terminal(stream: Any) -> bool:
    """Programs put other things in the place of ``sys.stderr``: a logger, None, a file that they
    close."""
    try:
        return bool(stream.isatty())
    except (AttributeError, TypeError, ValueError, OSError):
        return False


def _bar_type() -> Any:
    """tqdm, or None where no bar is to be shown."""
    if not _is_terminal(sys.stderr):
        return None
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None


@contextmanager
def shown(what: str, progress: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Shows how far the block is, by what ``progress`` says: bytes done, and bytes in all, which
    are 0 before it begins and after it has ended. It is called on another thread."""
    bar_type = _bar_type()
    if bar_type is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        with (
            suppress(Exception),  # a bar that cannot be drawn ends no save
            bar_type(desc=what, unit="B", unit_scale=True, unit_divisor=1024, leave=False) as bar,
        ):
            while not over.wait(EVERY_S):
                done, total = progress()
                if total > 0:
                    bar.total = total
                    bar.update(min(done, total) - bar.n)

    thread = threading.Thread(target=watch, name="taco-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
