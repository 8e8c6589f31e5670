"""tacorun on several hosts: a real sshd in each network namespace but the launcher's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from fabric import Fabric
from launching import MEETS, SLEEPS, all_gone, end, lines_of, pids_in, run, start, write
from sshd import Keys, Sshd, needs_sshd

pytestmark = needs_sshd

PYTHON = sys.executable


class Hosts:
    """Two hosts; tacorun runs on host 0, and sshd on host 1."""

    def __init__(self, fabric: Fabric, keys: Keys) -> None:
        self.fabric, self.keys = fabric, keys
        self.here, self.there = fabric.address(0), fabric.address(1)

    def words(self, *words: str) -> list[str]:
        return ["--ssh-command", self.keys.command, *words]

    def prefix(self) -> Sequence[str]:
        return self.fabric.command(0, [])

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return run(self.words(*words), folder, prefix=self.prefix())

    def start(self, folder: Path, *words: str) -> subprocess.Popen[str]:
        return start(self.words(*words), folder, prefix=self.prefix())


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    keys = Keys(tmp_path_factory.mktemp("keys"))
    with Fabric(hosts=2) as fabric, Sshd(fabric, 1, keys):
        keys.trust(fabric.address(1))
        yield Hosts(fabric, keys)


def test_ranks_on_two_hosts_meet(hosts: Hosts, tmp_path: Path) -> None:
    program = write(tmp_path, MEETS)
    names = f"{hosts.here}:2,{hosts.there}:2"
    done = hosts.run(tmp_path, "-np", "4", "-H", names, PYTHON, program)
    assert done.returncode == 0, done.stderr
    assert lines_of(done.stdout, 0) == [f"{hosts.here} {hosts.here}"]
    assert lines_of(done.stdout, 1) == [f"{hosts.here} {hosts.here}", "welcome"]
    for rank in (2, 3):
        assert lines_of(done.stdout, rank) == [f"{hosts.there} {hosts.here}", "welcome"]


def test_rank_0_may_be_on_another_host(hosts: Hosts, tmp_path: Path) -> None:
    program = write(tmp_path, MEETS)
    (tmp_path / "hosts").write_text(f"{hosts.there} slots=1\n{hosts.here} slots=1\n")
    done = hosts.run(tmp_path, "-np", "2", "--hostfile", "hosts", PYTHON, program)
    assert done.returncode == 0, done.stderr
    assert lines_of(done.stdout, 0) == [f"{hosts.there} {hosts.there}"]
    assert lines_of(done.stdout, 1) == [f"{hosts.here} {hosts.there}", "welcome"]


def test_the_interface_that_is_named_is_used(hosts: Hosts, tmp_path: Path) -> None:
    program = write(tmp_path, MEETS)
    names = f"{hosts.here}:1,{hosts.there}:1"
    words = ["-np", "2", "-H", names, "--network-interfaces", "eth0", PYTHON, program]
    done = hosts.run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    words[5] = "eth9"
    refused = hosts.run(tmp_path, *words)
    assert refused.returncode == 1
    assert "has no address at eth9 (--network-interfaces); it has eth0" in refused.stderr


def test_secrets_stand_on_no_command_line(hosts: Hosts, tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import glob, os
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                words = open(path, "rb").read()
            except OSError:
                continue
            assert os.environ["MY_SECRET"].encode() not in words, words
        print("kept", os.environ["HOME"])
        """,
    )
    words = hosts.words("-np", "1", "-H", f"{hosts.there}:1", PYTHON, program)
    done = run(words, tmp_path, {"MY_SECRET": "f00ba2", "HOME": "/nowhere"}, hosts.prefix())
    assert done.returncode == 0, done.stderr
    assert lines_of(done.stdout, 0) == [f"kept {os.path.expanduser('~root')}"]


def test_a_rank_that_fails_on_another_host_ends_all(hosts: Hosts, tmp_path: Path) -> None:
    write(tmp_path, SLEEPS, "sleeps.py")
    program = write(
        tmp_path,
        """
        import os, sys, time
        if os.environ["RANK"] != "3":
            exec(open("sleeps.py").read())
        while not all(os.path.exists(f"rank-{rank}.pid") for rank in range(3)):
            time.sleep(0.01)
        print("no more", file=sys.stderr)
        print(time.time(), file=open("failed", "w"))
        sys.exit(9)
        """,
    )
    names = f"{hosts.here}:2,{hosts.there}:2"
    done = hosts.run(tmp_path, "-np", "4", "-H", names, PYTHON, program)
    took = time.time() - float((tmp_path / "failed").read_text())
    assert done.returncode == 9
    there = re.escape(hosts.there)
    assert re.search(rf"rank 3 on {there} \(pid \d+\) ended with exit status 9", done.stderr)
    assert done.stderr.rstrip().endswith("[1,3]<stderr>:no more")
    all_gone(pids_in(tmp_path, 9), 0.5)
    assert took < 5.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_host_keeps_a_rank_of_a_job_that_was_ended(
    hosts: Hosts, tmp_path: Path, number: signal.Signals
) -> None:
    program = write(tmp_path, SLEEPS)
    names = f"{hosts.here}:1,{hosts.there}:1"
    process = hosts.start(tmp_path, "-np", "2", "-H", names, PYTHON, program)
    try:
        pids = pids_in(tmp_path, 6)
        process.send_signal(number)
        assert process.wait(10) == (-number if number == signal.SIGKILL else 128 + number)
        all_gone(pids)
    finally:
        end(process)


def test_a_host_that_does_not_answer_is_named(hosts: Hosts, tmp_path: Path) -> None:
    begun = time.monotonic()
    nobody = hosts.fabric.address(7)
    words = ["-np", "2", "-H", f"{hosts.there}:1,{nobody}:1", "--start-timeout", "5", "true"]
    done = hosts.run(tmp_path, *words)
    assert done.returncode == 1
    assert f"{nobody} cannot be reached" in done.stderr or f"{nobody} does not" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begun < 20


def test_a_host_without_sshd_is_named(hosts: Hosts, tmp_path: Path) -> None:
    words = ["-np", "1", "-H", f"{hosts.there}:1", "--ssh-port", "2223", "true"]
    done = hosts.run(tmp_path, *words)
    assert done.returncode == 1
    assert f"no sshd answers on {hosts.there}" in done.stderr


def test_a_host_whose_name_nobody_knows_is_named(hosts: Hosts, tmp_path: Path) -> None:
    done = hosts.run(tmp_path, "-np", "1", "-H", "no-such-host.invalid:1", "true")
    assert done.returncode == 1
    assert "no-such-host.invalid cannot be found" in done.stderr


def test_a_host_key_that_is_not_known_is_not_trusted(hosts: Hosts, tmp_path: Path) -> None:
    strangers = Keys(tmp_path / "strangers")
    (strangers.folder / "user").write_text((hosts.keys.folder / "user").read_text())
    command = ["--ssh-command", strangers.command]
    words = [*command, "-np", "1", "-H", f"{hosts.there}:1", "touch", "ran"]
    done = run(words, tmp_path, prefix=hosts.prefix())
    assert done.returncode == 1
    assert f"the key of {hosts.there} is not known here" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_user_who_is_not_let_in_is_told_what_is_missing(hosts: Hosts, tmp_path: Path) -> None:
    strangers = Keys(tmp_path / "strangers")
    strangers.known.write_text(hosts.keys.known.read_text())
    command = ["--ssh-command", strangers.command]
    done = run(
        [*command, "-np", "1", "-H", f"{hosts.there}:1", "true"], tmp_path, prefix=hosts.prefix()
    )
    assert done.returncode == 1
    assert f"{hosts.there} does not let this user in without a password" in done.stderr


def test_a_host_without_the_package_is_named(hosts: Hosts, tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {PYTHON} -I -S "$@"\n')
    bare.chmod(0o755)
    words = ["-np", "1", "-H", f"{hosts.there}:1", "--remote-python", str(bare), "true"]
    done = hosts.run(tmp_path, *words)
    assert done.returncode == 1
    assert f"{hosts.there} has no taco_torch in {bare}" in done.stderr


def test_a_host_without_this_python_is_named(hosts: Hosts, tmp_path: Path) -> None:
    nothing = str(tmp_path / "no-python")
    words = ["-np", "1", "-H", f"{hosts.there}:1", "--remote-python", nothing, "true"]
    done = hosts.run(tmp_path, *words)
    assert done.returncode == 1
    assert f"{hosts.there} has no {nothing}" in done.stderr


def test_a_host_with_another_version_is_named(hosts: Hosts, tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    program = write(
        tmp_path,
        """
        import importlib.util, sys
        found = importlib.util.find_spec("taco_torch")
        sys.modules["taco_torch"] = importlib.util.module_from_spec(found)
        import taco_torch.launch.remote as remote
        remote.version = lambda: "0.0.1"
        sys.exit(remote.main())
        """,
        "other.py",
    )
    other.write_text(f"#!/bin/sh\nexec {PYTHON} {program}\n")
    other.chmod(0o755)
    words = ["-np", "1", "-H", f"{hosts.there}:1", "--remote-python", str(other), "true"]
    done = hosts.run(tmp_path, *words)
    assert done.returncode == 1
    assert f"{hosts.there} has taco_torch 0.0.1, this host" in done.stderr


def test_a_login_that_prints_does_no_harm(hosts: Hosts, tmp_path: Path) -> None:
    chatty = tmp_path / "chatty-python"
    chatty.write_text(f'#!/bin/sh\necho Welcome to this host!\nexec {PYTHON} "$@"\n')
    chatty.chmod(0o755)
    words = ["-np", "1", "-H", f"{hosts.there}:1", "--remote-python", str(chatty), "echo", "here"]
    done = hosts.run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1,0]<stdout>:here\n"


def test_an_address_that_cannot_be_reached_is_found_before_the_ranks_start(
    hosts: Hosts, tmp_path: Path
) -> None:
    """A firewall lets ssh through, and nothing else."""
    table = "add table inet wall\n"
    table += "add chain inet wall in { type filter hook input priority 0; policy drop; }\n"
    for rule in (
        "iif lo accept",
        "ct state established,related accept",
        "tcp dport 2222 accept",
        "meta l4proto { icmp, icmpv6 } accept",
    ):
        table += f"add rule inet wall in {rule}\n"
    rules = tmp_path / "rules"
    rules.write_text(table)
    hosts.fabric.output(1, ["nft", "-f", str(rules)])
    try:
        names = f"{hosts.there}:1,{hosts.here}:1"
        done = hosts.run(tmp_path, "-np", "2", "-H", names, "touch", "ran")
    finally:
        hosts.fabric.output(1, ["nft", "delete", "table", "inet", "wall"])
    assert done.returncode == 1
    assert f"{hosts.here} reaches no address of {hosts.there}" in done.stderr
    assert "firewalls" in done.stderr
    assert not (tmp_path / "ran").exists()
