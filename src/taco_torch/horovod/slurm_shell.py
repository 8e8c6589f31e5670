"""A shell that srun has started on a terminal (srun --pty): whether this process was started there.

It has all of a task's variables and is none: nobody starts the other tasks' programs. What such a
shell starts by another srun inherits the terminal's variables, but SLURM_TASK_PID is set for each
task anew, and srun gives a terminal to none of these. A function without a state.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_OF_A_TERMINAL = ("SLURM_PTY_PORT", "SLURM_PTY_WIN_ROW")


def is_around(given: Mapping[str, str]) -> bool:
    """Whether an interactive shell, or interactive Python, is between srun and this program. By
    its process group: an interactive shell gives each program one of its own, a script none."""
    if any(name not in given for name in _OF_A_TERMINAL):
        return False
    task = _group_and_terminal(given.get("SLURM_TASK_PID", ""))
    if task is None:  # a container has processes of its own
        return os.isatty(0)
    group, has_terminal = task
    return has_terminal and (group != os.getpgrp() or hasattr(sys, "ps1"))


def _group_and_terminal(pid: str) -> tuple[int, bool] | None:
    """The process group, and whether a terminal controls it; None: there is no such process."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text()
    except (OSError, ValueError):
        return None
    _, _, group, _, terminal, *_ = text.rpartition(")")[2].split()  # the name may have any signs
    return int(group), int(terminal) != 0
