"""Signals as a terminal's foreground program has them."""

from __future__ import annotations

import signal


def default_signals() -> None:
    """For a child before exec: it would inherit SIGINT as ignored from a shell's background job,
    and SIGHUP from nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
