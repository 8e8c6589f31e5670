"""Measures of what must not grow while a process goes on."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from pathlib import Path


def footprint() -> dict[str, int]:
    """Threads, descriptors, mappings, and resident memory in bytes.

    Threads for callbacks count apart: they come as callbacks block, and stay; they are bounded."""
    proc = Path("/proc/self")
    names = []
    for path in proc.glob("task/*/comm"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            names.append(path.read_text())
    callbacks = sum(1 for name in names if name.startswith("taco-callback"))
    return {
        "threads": len(names) - callbacks,
        "callback threads": callbacks,
        "descriptors": len(list((proc / "fd").iterdir())),
        "mappings": (proc / "maps").read_text().count("\n"),
        "resident": int((proc / "statm").read_text().split()[1]) * resource.getpagesize(),
    }


def printed_by(program: str, *arguments: object) -> int:
    """The number that a Python program of its own prints last: its peak, say."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])
