"""deploy/wait_for_hosts.py: hosts that come late are waited for, others are named in the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "deploy" / "wait_for_hosts.py"
# In reserved domains, which no DNS has.
NOWHERE = "worker-0.taco.invalid"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "MASTER_ADDR"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this host that nobody else gets and nothing listens at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_the_command_runs_once_the_hosts_are_there() -> None:
    done = run("localhost", "--", "sh", "-c", "echo $0 $1; exit 3", "ran", "well")
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran well\n", "")


def test_a_host_that_comes_late_is_waited_for() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
        command = [sys.executable, str(SCRIPT), "127.0.0.1", "--port", port, "--", "echo", "ran"]
        waiting = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None
        # It has looked and found nothing when it says so.
        assert "0 of 1 hosts are there; waiting for 127.0.0.1 (" in waiting.stderr.readline()
        held.listen()
        out, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (0, "ran\n")


def test_a_name_that_nobody_knows_is_named_with_the_reason() -> None:
    done = run(NOWHERE, "localhost", "--timeout", "0", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{NOWHERE} cannot be reached after 0 s: " in done.stderr
    assert "localhost cannot" not in done.stderr
    assert "its name is right" in done.stderr


def test_a_port_where_nothing_answers_is_named(closed_port: int) -> None:
    done = run("127.0.0.1", "--port", str(closed_port), "--timeout", "0.1", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"127.0.0.1 cannot be reached at port {closed_port} after 0.1 s: Conn" in done.stderr


def test_hosts_are_those_of_a_hostfile_and_the_first_is_the_master(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("# all of them\n127.0.0.1 slots=2\nlocalhost:2  # the other one\n\n")
    show = ["sh", "-c", "echo $MASTER_ADDR"]
    done = run("--hostfile", str(file), "--set-master", "--", *show)
    assert (done.returncode, done.stdout) == (0, "127.0.0.1\n")
    done = run("--hostfile", str(file), "--", *show)
    assert (done.returncode, done.stdout) == (0, "\n")


def test_a_host_may_stand_in_a_variable() -> None:
    done = run("--variable", "PET_MASTER_ADDR", "--", "echo", "ran", PET_MASTER_ADDR="localhost")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    done = run("--variable", "PET_MASTER_ADDR", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--variable PET_MASTER_ADDR: the environment does not set it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["localhost"], "no command: write it behind --"),
        (["--", "echo"], "no host: name some"),
        (["localhost", "--port", "70000", "--", "echo"], "--port is 70000, but must be from 1 to"),
        (["localhost", "--timeout", "-1", "--", "echo"], "--timeout is -1, but must be 0 or more"),
        (["--hostfile", "/nowhere/hosts", "--", "echo"], "hostfile /nowhere/hosts cannot be read"),
        (["--hostfile", "/dev/null", "--", "echo"], "hostfile /dev/null names no host"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_line_that_is_no_host_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("localhost slots=2\n=2 slots\n")
    done = run("--hostfile", str(file), "--", "echo")
    assert done.returncode == 2
    assert f"hostfile {file}, line 2: '=2' is no name of a host" in done.stderr


def test_a_command_that_is_not_there_is_named() -> None:
    done = run("localhost", "--", "no-such-command")
    assert done.returncode == 127
    assert "no-such-command cannot be started: No such file or directory" in done.stderr


def test_what_waits_can_be_ended(closed_port: int) -> None:
    command = [sys.executable, str(SCRIPT), "127.0.0.1", "--port", str(closed_port), "--", "echo"]
    waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None
    waiting.stderr.readline()
    waiting.terminate()
    _, said = waiting.communicate(timeout=60)
    assert (waiting.returncode, said) == (-15, "")
