"""The Makefile and its scripts: what a newcomer meets first, and that nothing stays behind."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts import clean_environment, with_scripts, write_program
from signals import default_signals

TOP = Path(__file__).parents[1]


def test_help_names_every_target() -> None:
    makefile = (TOP / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets
    shown = subprocess.run(
        ["make", "-C", str(TOP), "--no-print-directory"], capture_output=True, text=True, check=True
    ).stdout
    assert [name for name in " ".join(targets).split() if f"make {name}" not in shown] == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return with_scripts(tmp_path)


NINJA = """source tools/common.sh
compile() {
  echo '-- The C++ compiler'
  echo '  [43/120] Building CXX object a.cc.o'
  echo 'a.cc:1: warning: [1/2] is no progress'
  for _ in {1..1000}; do [ -e compiled ] && return; sleep 0.02; done
}
phase "compile everything" compile
"""


def read_until(file: int, text: str) -> str:
    shown = ""
    while text not in shown:
        more = os.read(file, 4096)
        assert more, shown
        shown += more.decode()
    return shown


def test_a_log_says_now_and_then_how_far_a_compilation_is(checkout: Path) -> None:
    script = checkout / "tools" / "compile.sh"
    write_program(script, NINJA)
    environment = {**clean_environment(), "PROGRESS_EVERY": "1"}
    with subprocess.Popen(
        [str(script)], cwd=checkout, env=environment, stdout=subprocess.PIPE
    ) as phase:
        assert phase.stdout is not None
        shown = read_until(phase.stdout.fileno(), "43/120 files, about ")
        (checkout / "compiled").touch()
        rest = phase.stdout.read().decode()
    assert phase.returncode == 0
    assert "\n  [###.......] 43/120 files" in shown
    assert re.search(r"\ncompile everything \.\.\. +\d+ s\n$", shown + rest)
    assert "\r" not in shown + rest


def test_a_terminal_has_a_bar_that_is_drawn_in_place(checkout: Path) -> None:
    script = checkout / "tools" / "compile.sh"
    write_program(script, NINJA)
    environment = {**clean_environment(), "TERM": "xterm"}
    terminal, end = os.openpty()
    try:
        with subprocess.Popen([str(script)], cwd=checkout, env=environment, stdout=end) as phase:
            shown = read_until(terminal, "43/120 files, about ")
            (checkout / "compiled").touch()
            shown += read_until(terminal, " s\r\n")
        assert phase.returncode == 0
    finally:
        os.close(terminal)
        os.close(end)
    lines = shown.split("\r\n")
    assert len(lines) == 2, "one line, and nothing behind it"
    assert re.search(r"\r\x1b\[Kcompile everything \.\.\. +\[###\.{7}\] 43/120 files", lines[0])
    assert re.search(r"\r\x1b\[Kcompile everything \.\.\. +\d+ s$", lines[0])


# Options that hide torch and the rest of an environment's packages.
BARE = [sys.executable, "-I", "-S", "-c"]
HOOKS = [
    "get_requires_for_build_wheel()",
    "prepare_metadata_for_build_wheel('.')",
    "build_wheel('.')",
]
PACKAGING = TOP / "tools" / "packaging"
# Every way of installing ends so.
INSTALL = "python -m pip install --no-build-isolation ."
PYTHON_DEV = f"python3.{sys.version_info[1]}-dev"


def build_hook(
    call: str, python: list[str], site: Path = Path("nowhere"), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A hook of the build where ``site`` is what build isolation hides."""
    code = (
        f"import sys; sys.path.insert(0, {str(PACKAGING)!r}); import checked_build as b; "
        f"b._SITE = [{str(site)!r}]; b.{call}"
    )
    return subprocess.run(
        [*python, code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def line_to_type(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of the remedy."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line.strip() for line in done.stderr.splitlines() if line.endswith(INSTALL)]
    assert len(lines) == 1, done.stderr
    return lines[0]


def install_stub(site: Path, package: str, version: str) -> None:
    """Makes what an installation of ``package`` leaves, as far as a build looks at it."""
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text("")
    record = site / f"{package}-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH: all that a build needs, where nothing can be compiled against."""
    folder = tmp_path / "tools"
    folder.mkdir()
    write_program(folder / "cmake", "echo cmake version 3.22.1\n")
    for name in ("ninja", "c++", "apt-get"):
        write_program(folder / name, "exit 0\n")
    return folder


@pytest.mark.parametrize("call", HOOKS)
def test_a_build_without_its_needs_says_the_remedy_instead_of_a_traceback(call: str) -> None:
    done = build_hook(call, BARE)
    assert re.search(r"Missing: torch .*, scikit-build-core", done.stderr)
    line = line_to_type(done)
    assert "'torch>=2.11' 'scikit-build-core>=0.10'" in line


def test_one_line_installs_every_missing_tool_and_nothing_else(tools: Path) -> None:
    here = {"PATH": f"{tools}:/bin", "CXX": ""}
    packages = "'torch>=2.11' 'scikit-build-core>=0.10'"
    assert line_to_type(build_hook("_backend()", BARE, **here)) == (
        f"python -m pip install {packages} && {INSTALL}"
    )
    write_program(tools / "c++", "exit 1\n")  # has no header
    write_program(tools / "cmake", "echo cmake version 3.16.3\n")
    line = line_to_type(build_hook("_backend()", BARE, **here))
    needs = f"{PYTHON_DEV} libssl-dev libxxhash-dev liburing-dev"
    apt = f"apt-get install -y --no-install-recommends {needs}"
    assert line.removeprefix("sudo ") == (
        f"{apt} && python -m pip install {packages} 'cmake>=3.22' && {INSTALL}"
    )
    for name in ("c++", "cmake", "ninja"):
        (tools / name).unlink()
    line = line_to_type(build_hook("_backend()", BARE, PATH=str(tools), CXX=""))
    assert re.search(r"apt-get install -y --no-install-recommends g\+\+", line)
    assert f"{packages} 'cmake>=3.22' ninja && {INSTALL}" in line
    (tools / "apt-get").unlink()
    done = build_hook("_backend()", BARE, PATH=str(tools), CXX="")
    assert line_to_type(done).startswith("python -m pip")
    assert "this system's packages" in done.stderr


def test_what_isolation_hides_is_not_installed_again(tools: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_stub(site, "torch", "2.13.0+cpu")
    install_stub(site, "scikit_build_core", "1.1.2")
    done = build_hook(HOOKS[0], BARE, site, PATH=f"{tools}:/bin", CXX="")
    assert line_to_type(done) == INSTALL
    assert "isolation hides" in done.stderr


def test_a_torch_that_is_too_old_is_refused_before_anything_is_compiled(
    tools: Path, tmp_path: Path
) -> None:
    install_stub(tmp_path, "torch", "2.10.0")
    done = build_hook("_backend()", BARE, tmp_path, PATH=f"{tools}:/bin", CXX="")
    assert "torch 2.11 or newer (found 2.10.0)" in done.stderr
    assert "'torch>=2.11'" in line_to_type(done)


def test_a_torch_that_is_newer_than_any_that_was_tested_is_tried(
    tools: Path, tmp_path: Path
) -> None:
    install_stub(tmp_path, "torch", "2.99.0+cu140")
    done = build_hook("_backend()", BARE, tmp_path, PATH=f"{tools}:/bin", CXX="")
    assert "'torch" not in line_to_type(done)


def test_the_torch_of_a_build_is_the_one_that_the_package_asks_for() -> None:
    (asked,) = re.findall(r'dependencies = \["(torch.*)"\]', (TOP / "pyproject.toml").read_text())
    done = build_hook("_backend()", BARE)
    assert f"'{asked}'" in line_to_type(done)


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A virtual environment that has a torch, as far as a build looks at it, and no more."""
    environment = tmp_path / "environment"
    create = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(create, check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    install_stub(site, "torch", "2.13.0")
    return environment / "bin" / "python"


@pytest.mark.parametrize("isolated", [False, True])
def test_pip_shows_the_line_to_type(stranger: Path, isolated: bool) -> None:
    # Importing pip here would keep setuptools from taking the place of distutils ever after,
    # without which torch.compile finds no compiler.
    if not list(importlib.metadata.distributions(name="pip")):
        pytest.skip("this environment has no pip")
    command = [sys.executable, "-m", "pip", "--python", str(stranger), "install", "--no-index"]
    options = [] if isolated else ["--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-deps", *options, str(TOP)], capture_output=True, text=True, check=False
    )
    shown = done.stdout + done.stderr
    assert done.returncode != 0
    assert "Traceback" not in shown
    (line,) = (line for line in shown.splitlines() if line.endswith(INSTALL))
    assert "'scikit-build-core>=0.10'" in line
    assert "torch" not in line, "it is there, for who does not hide it"


def test_the_readme_installs_every_need_of_a_build() -> None:
    """Its lines are for somebody who has torch and nothing else."""
    shown = re.findall(r"^(sudo apt-get .*\\\n.*\n.*no-build-isolation.*)$", readme(), re.MULTILINE)
    (lines,) = shown
    words = lines.split()
    debian = "g++ cmake ninja-build python3-dev libssl-dev libxxhash-dev liburing-dev"
    for need in (*debian.split(), "scikit-build-core"):
        assert need in words
    assert lines.endswith(INSTALL.removeprefix("python -m "))


def readme() -> str:
    return (TOP / "README.md").read_text()


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


def run_tests(
    checkout: Path, program: str, part: str = "quick", **environment: str
) -> subprocess.CompletedProcess[str]:
    script = stand_in_tests(checkout, program)
    return subprocess.run(
        [str(script), part],
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_that_outlives_the_tests_fails_the_run_and_is_ended(checkout: Path) -> None:
    marker = f"86400.{os.getpid()}1"
    done = run_tests(checkout, f"setsid sleep {marker} &\nexit 0\n")
    assert done.returncode == 1
    assert f"sleep {marker}" in done.stdout
    wait_until(lambda: not running(marker))


def test_a_race_fails_the_run_and_the_other_tests_still_run(checkout: Path) -> None:
    write_program(checkout / "tools" / "sanitize.sh", 'echo "sanitizer: $*"\nexit 1\n')
    done = run_tests(checkout, "echo the Python tests ran\n", "rest")
    assert done.returncode == 1
    assert "sanitizer: threads" in done.stdout
    assert done.stdout.count("the Python tests ran") == 2, "those that need the machine, too"


# Writes what pytest would write.
REPORTING = """
for argument; do [ "$previous" = --junitxml ] && file=$argument; previous=$argument; done
echo "<testsuites><testsuite>
<testcase classname='module' name='the_slow_one' time='19.5'/>
<testcase classname='module' name='the_other' time='0.5'><skipped/></testcase>
<testcase classname='module' name='the_quick_one' time='0.01'/>
</testsuite></testsuites>" >"$file"
"""


def test_the_last_line_says_how_many_tests_ran_and_above_it_are_the_slowest(checkout: Path) -> None:
    done = run_tests(checkout, REPORTING, SLOWEST="2")
    assert done.returncode == 0, done.stdout + done.stderr
    *_, first, second, last = done.stdout.splitlines()
    assert first.split() == ["19.50", "s", "module::the_slow_one"]
    assert second.split() == ["0.50", "s", "module::the_other"]
    assert re.fullmatch(r"3 Python tests \(1 skipped\); all passed in \d+ s", last)


def test_the_number_of_a_programs_threads_is_not_that_of_test_programs_at_once(
    checkout: Path,
) -> None:
    """nproc takes OMP_NUM_THREADS for the number of cores, and tests run with one thread each."""
    programs = checkout / "programs"
    programs.mkdir()
    write_program(programs / "nproc", 'echo "${OMP_NUM_THREADS:-7}"\n')
    write_program(programs / "ctest", 'echo "ctest $*"\n')
    path = f"{programs}:{os.environ['PATH']}"
    done = run_tests(checkout, "exit 0\n", PATH=path, OMP_NUM_THREADS="3")
    assert " -j 7 " in done.stdout, done.stdout + done.stderr


def test_what_one_part_leaves_out_the_other_runs(checkout: Path) -> None:
    """The expressions that choose tests by their markers leave none out, and none for twice."""
    asked = 'while [ "$1" != -m ]; do shift; done; echo "chosen: $2"\n'
    chosen = {}
    for part in ("quick", "rest", "all"):
        found = re.findall("^chosen: (.*)$", run_tests(checkout, asked, part).stdout, re.MULTILINE)
        chosen[part] = found
    for whole, alone in ((False, False), (True, False), (True, True)):
        marks = {"whole": whole, "alone": alone}
        for parts in (("quick", "rest"), ("all",)):
            expressions = [expression for part in parts for expression in chosen[part]]
            assert sum(bool(eval(each, {}, marks)) for each in expressions) == 1, (marks, parts)


def test_interrupting_a_phase_ends_what_it_started(checkout: Path) -> None:
    marker = f"86400.{os.getpid()}3"
    script = checkout / "tools" / "slow.sh"
    write_program(script, f"source tools/common.sh\nphase waiting sh -c 'sleep {marker} & wait'\n")
    phase = subprocess.Popen([str(script)], cwd=checkout, stdout=subprocess.DEVNULL)
    wait_until(lambda: running(f"sleep\0{marker}"))
    phase.terminate()
    assert phase.wait(20) == 130
    wait_until(lambda: not running(f"sleep\0{marker}"))


@pytest.mark.parametrize("part", ["quick", "rest"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_tests_leave_nothing_behind(checkout: Path, number: int, part: str) -> None:
    marker, beside = f"86400.{os.getpid()}2", f"86400.{os.getpid()}4"
    tests = stand_in_tests(checkout, f"setsid sleep {marker} &\nsleep {marker}\n")
    # The trees of sanitizers are compiled beside the tests.
    write_program(checkout / "tools" / "sanitize.sh", f"setsid sleep {beside} &\nsleep {beside}\n")
    temporary = checkout / "temporary"
    temporary.mkdir()
    script = subprocess.Popen(
        [str(tests), part],
        env={**clean_environment(), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=default_signals,
    )
    wait_until(lambda: running(marker) and (part == "quick" or running(beside)))
    script.send_signal(number)
    output = script.communicate(timeout=30)[0]
    assert script.returncode == 130, output
    wait_until(lambda: not running(marker))
    wait_until(lambda: not running(beside))
    assert not list(temporary.iterdir())


def test_a_fuzz_target_that_fails_keeps_no_other_from_running(checkout: Path) -> None:
    shutil.copy(TOP / "tools" / "sanitize.sh", checkout / "tools")
    write_program(checkout / "cmake", "exit 0\n")
    targets = checkout / "build" / "fuzz"
    targets.mkdir()
    write_program(targets / "broken_fuzz", "echo an input that crashes\nexit 77\n")
    write_program(targets / "ended_fuzz", "echo nothing\n")
    write_program(targets / "fine_fuzz", "echo Done 8 runs in 1 second\n")
    done = subprocess.run(
        [str(checkout / "tools" / "sanitize.sh"), "fuzz-short"],
        env={**clean_environment(), "PATH": f"{checkout}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.search("^broken_fuzz .*FAILED", done.stdout, re.MULTILINE)
    assert "an input that crashes" in done.stdout
    assert re.search("^ended_fuzz .*did not run to its end", done.stdout, re.MULTILINE)
    assert re.search("^fine_fuzz .*Done 8 runs", done.stdout, re.MULTILINE)
    assert "found something in: broken_fuzz ended_fuzz" in done.stderr
