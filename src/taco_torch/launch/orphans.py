"""Processes that others have left behind become children of this one, which can then end them.

Made by a process's main thread, before it starts anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


class Orphans:
    """From now on a process below this one whose parent ends is this one's child."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A program that becomes another one by exec keeps its children: they are not ours.
        self._before = set(_children())

    def kill(self) -> None:
        """Ends all children, until there are no more: killing one may hand its own on."""
        while children := [pid for pid in _children() if pid not in self._before]:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _children() -> list[int]:
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in processes if _parent(pid) == os.getpid()]


def _parent(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return 0
    return int(text.rpartition(")")[2].split()[1])
