"""Signals as a terminal's foreground program has them."""

from __future__ import annotations

import signal


def default_signals() -> None:
    """For a child before exec: a shell's background job would inherit SIGINT as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
