"""The Makefile and its scripts: what a newcomer meets first, and that nothing stays behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from signals import default_signals

TOP = Path(__file__).parents[1]


def test_help_names_every_target() -> None:
    makefile = (TOP / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets
    shown = subprocess.run(
        ["make", "-C", str(TOP), "--no-print-directory"], capture_output=True, text=True, check=True
    ).stdout
    assert [name for name in targets[1].split() if f"make {name}" not in shown] == []


def write_program(path: Path, text: str) -> None:
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the scripts, where set-up and the test programs are stand-ins."""
    shutil.copytree(TOP / "tools", tmp_path / "tools")
    (tmp_path / "build" / "release").mkdir(parents=True)
    (tmp_path / "build" / "release" / "CTestTestfile.cmake").write_text("")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    write_program(tmp_path / "tools" / "sanitize.sh", "exit 0\n")
    return tmp_path


def test_missing_packages_are_named_in_one_error(checkout: Path) -> None:
    programs = checkout / "programs"
    programs.mkdir()
    for name in ("bash", "mkdir", "dirname", "nproc", "readlink", "g++", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    write_program(programs / "python3", f'exec {sys.executable} "$@"\n')
    write_program(programs / "id", "echo 1000\n")  # an ordinary user, who may install nothing
    done = subprocess.run(
        [str(checkout / "tools" / "setup.sh"), "python"],
        env={"PATH": str(programs), "HOME": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"Missing on this machine: .*\bcmake\b.*\bninja-build\b", done.stderr)
    assert re.search(r"sudo apt-get install .*\bcmake\b.*\bninja-build\b", done.stderr)


# What `import torch` and the rest of an environment's packages are hidden by.
BARE = [sys.executable, "-I", "-S", "-c"]
HOOKS = [
    "get_requires_for_build_wheel()",
    "prepare_metadata_for_build_wheel('.')",
    "build_wheel('.')",
]
PACKAGING = TOP / "tools" / "packaging"


def build_hook(
    call: str, python: list[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGING)!r}); import checked_build as b; b.{call}"
    )
    return subprocess.run(
        [*python, code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("call", HOOKS)
def test_a_build_without_its_needs_says_the_remedy_instead_of_a_traceback(call: str) -> None:
    done = build_hook(call, BARE)
    assert done.returncode == 1
    assert re.search(r"Missing: torch .*, scikit-build-core", done.stderr)
    assert "--no-build-isolation" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_build_names_every_missing_tool(tmp_path: Path) -> None:
    done = build_hook("_backend()", BARE, PATH=str(tmp_path), CXX="")
    for name in ("cmake", "ninja", "C++ compiler"):
        assert name in done.stderr.split("\n\n")[0]
    write_program(tmp_path / "c++", "exit 1\n")
    done = build_hook("_backend()", BARE, PATH=f"{tmp_path}:/bin", CXX="")
    for name in ("Python's headers", "libssl-dev"):
        assert name in done.stderr.split("\n\n")[0]


def test_pip_shows_the_remedy_when_it_isolates_the_build(tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="this environment has no pip")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(tmp_path), str(TOP)], capture_output=True, text=True, check=False
    )
    shown = done.stdout + done.stderr
    assert done.returncode != 0
    assert "python -m pip install --no-build-isolation ." in shown
    assert "Traceback" not in shown


def test_the_readme_names_every_need_of_a_build() -> None:
    needs = re.search(r'_APT = "(.+)"', (PACKAGING / "checked_build.py").read_text())
    assert needs
    readme = (TOP / "README.md").read_text()
    words = [*needs[1].split(), "scikit-build-core", "--no-build-isolation"]
    assert [word for word in words if word not in readme] == []


def clean_environment() -> dict[str, str]:
    """Without the mark of the test run that this test may itself be part of."""
    return {name: value for name, value in os.environ.items() if name != "TEST_RUN_ID"}


def running(marker: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


def wait_until(condition, deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def stand_in_tests(checkout: Path, program: str) -> Path:
    """The script behind `make test`, where ``program`` takes the place of the Python tests."""
    write_program(checkout / "tools" / "setup.sh", "exit 0\n")
    write_program(checkout / ".venv" / "bin" / "pytest", program)
    return checkout / "tools" / "test.sh"


def run_tests(checkout: Path, program: str) -> subprocess.CompletedProcess[str]:
    script = stand_in_tests(checkout, program)
    return subprocess.run(
        [str(script)], env=clean_environment(), capture_output=True, text=True, check=False
    )


def test_a_process_that_outlives_the_tests_fails_the_run_and_is_ended(checkout: Path) -> None:
    marker = f"86400.{os.getpid()}1"
    done = run_tests(checkout, f"setsid sleep {marker} &\nexit 0\n")
    assert done.returncode == 1
    assert f"sleep {marker}" in done.stdout
    assert not running(marker)


def test_a_race_fails_the_run_and_the_other_tests_still_run(checkout: Path) -> None:
    write_program(checkout / "tools" / "sanitize.sh", 'echo "sanitizer: $*"\nexit 1\n')
    done = run_tests(checkout, "echo the Python tests ran\n")
    assert done.returncode == 1
    assert "sanitizer: threads" in done.stdout
    assert "the Python tests ran" in done.stdout


def test_interrupting_a_phase_ends_what_it_started(checkout: Path) -> None:
    marker = f"86400.{os.getpid()}3"
    script = checkout / "tools" / "slow.sh"
    write_program(script, f"source tools/common.sh\nphase waiting sh -c 'sleep {marker} & wait'\n")
    phase = subprocess.Popen([str(script)], cwd=checkout, stdout=subprocess.DEVNULL)
    wait_until(lambda: running(f"sleep\0{marker}"))
    phase.terminate()
    assert phase.wait(20) == 130
    assert not running(f"sleep\0{marker}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_tests_leave_nothing_behind(checkout: Path, number: int) -> None:
    marker = f"86400.{os.getpid()}2"
    tests = stand_in_tests(checkout, f"setsid sleep {marker} &\nsleep {marker}\n")
    temporary = checkout / "temporary"
    temporary.mkdir()
    script = subprocess.Popen(
        [str(tests)],
        env={**clean_environment(), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=default_signals,
    )
    wait_until(lambda: running(marker))
    script.send_signal(number)
    output = script.communicate(timeout=30)[0]
    assert script.returncode == 130, output
    assert not running(marker)
    assert not list(temporary.iterdir())
