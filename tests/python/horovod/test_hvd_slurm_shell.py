"""Programs in a shell of srun --pty are no tasks; those that another srun starts from it are."""

from __future__ import annotations

import os
import pty
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from taco_torch.horovod import slurm_shell
from taco_torch.horovod.environment import world

PTY = {"SLURM_PTY_PORT": "34889", "SLURM_PTY_WIN_COL": "80", "SLURM_PTY_WIN_ROW": "24"}
TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NODELIST": "gpu07",
    "SLURM_STEP_TASKS_PER_NODE": "8",
    "PMI_RANK": "0",  # srun --mpi=pmi2
    "PMI_SIZE": "8",
}


def on_a_terminal(program: list[str], typed: str, folder: Path) -> str:
    """The program's answer, which it has left in a file; ``typed`` is its input."""
    (folder / "asks.py").write_text(
        textwrap.dedent(f"""
        import os, runpy
        is_around = runpy.run_path({slurm_shell.__file__!r})["is_around"]
        open("new", "w").write(str(is_around(os.environ)))
        os.rename("new", "found")
        """)
    )
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(program[0], program, {**os.environ, **TASK, **PTY, "PYTHON": sys.executable})
    os.write(terminal, typed.encode())
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # its last process has gone
        pass
    os.close(terminal)
    os.waitpid(child, 0)
    return (folder / "found").read_text()


@pytest.mark.parametrize("how", ["", "setsid --wait"], ids=["program", "kernel of a notebook"])
def test_what_a_shell_has_started_is_no_task(tmp_path: Path, how: str) -> None:
    """The kernel of a notebook has neither a terminal nor a shell's process group."""
    away = "</dev/null >/dev/null 2>&1" if how else ""
    typed = f"export SLURM_TASK_PID=$$\n{how} $PYTHON asks.py {away}\nexit\n"
    assert on_a_terminal(["bash", "--norc", "-i"], typed, tmp_path) == "True"


@pytest.mark.parametrize(
    "script",
    [
        "SLURM_TASK_PID=$$ exec $PYTHON asks.py",
        "export SLURM_TASK_PID=$$; $PYTHON asks.py; true",
        # As slurmd starts the tasks of an srun in such a shell, which inherit its variables.
        "setsid --wait sh -c 'SLURM_TASK_PID=$$ exec $PYTHON asks.py' </dev/null",
        "setsid --wait sh -c 'export SLURM_TASK_PID=$$; $PYTHON asks.py; true' </dev/null",
    ],
    ids=["itself", "by a script", "of another srun", "of another srun by a script"],
)
def test_what_srun_has_started_is_a_task(tmp_path: Path, script: str) -> None:
    assert on_a_terminal(["bash", "-c", script], "", tmp_path) == "False"


def test_a_program_in_a_shell_is_told_so_and_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    given = {**TASK, **PTY}  # SLURM_TASK_PID is of no process: a container's program
    with pytest.warns(UserWarning, match=r"8 tasks .*only its shell \(--pty\).* Write srun"):
        assert world(given).size == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert world(TASK).size == 8
        monkeypatch.setattr(os, "isatty", lambda _: False)
        assert world(given).size == 8
