"""Programs in processes of a WarmPython behave as those that Python itself starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm_python import WarmPython


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    with WarmPython(["decimal"], {"WARM": "server"}) as made:
        yield made


SHOW = """
import atexit, os, sys
atexit.register(print, "the end", flush=True)
class Last:
    def __del__(self): os.write(1, b"taken down\\n")
last = Last()
print(__name__, sys.argv[1:], os.getcwd(), os.environ.get("WARM"), sys.stdin.read())
print("on the other", file=sys.stderr)
if len(sys.argv) > 1: sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
@pytest.mark.parametrize("status", [0, 3])
def test_a_program_begins_and_ends_as_under_python(
    python: WarmPython, tmp_path: Path, kind: str, status: int
) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    what = {"-c": ["-c", SHOW], "-m": ["-m", "show"], "script": [tmp_path / "show.py"]}[kind]
    arguments = [*what, str(status)]
    environment = {**os.environ, "WARM": "own"}
    warm = python.run(arguments, environment, tmp_path)
    cold = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (warm.returncode, warm.stdout, warm.stderr) == (status, cold.stdout, "on the other\n")
    assert warm.stdout.endswith("the end\ntaken down\n")


def test_what_was_imported_is_there_and_an_error_is_shown(python: WarmPython) -> None:
    done = python.run(["-c", "import sys; assert 'decimal' in sys.modules; {}['missing']"])
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'missing'\n")


def test_several_run_at_once_and_each_gets_its_own_signal(python: WarmPython) -> None:
    sleepers = [python.popen(["-c", "import time; time.sleep(100)"]) for _ in range(3)]
    assert [process.poll() for process in sleepers] == [None] * 3
    sleepers[1].terminate()
    assert sleepers[1].wait(30) == -signal.SIGTERM
    assert [process.poll() for process in sleepers] == [None, -signal.SIGTERM, None]
    with pytest.raises(subprocess.TimeoutExpired):
        sleepers[0].wait(0.1)
    assert python.run(["-c", "print('beside them')"]).stdout == "beside them\n"
    for process in (sleepers[0], sleepers[2]):
        process.kill()
        assert process.wait(30) == -signal.SIGKILL


def test_one_that_takes_too_long_is_ended(python: WarmPython) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        python.run(["-c", "import time; time.sleep(100)"], timeout=0.2)
    assert python.run(["-c", "print('the next')"]).stdout == "the next\n"


def test_closing_ends_what_runs() -> None:
    with WarmPython([]) as python:
        process = python.popen(["-c", "import time; time.sleep(100)"])
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_module_that_cannot_be_imported_is_an_error_at_once() -> None:
    with pytest.raises(RuntimeError, match="the server has ended with 1"):
        WarmPython(["no_such_module"])
