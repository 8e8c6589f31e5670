"""Elastic jobs of tacorun, with little programs in place of training: who is in which world."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from launching import (
    WITHOUT_TORCH,
    all_gone,
    discovery,
    end,
    is_alive,
    run,
    set_hosts,
    start,
    until,
)

PYTHON = sys.executable

# Ranks of a world hang together by connections to rank 0, as those of a group do: when one dies,
# all others notice and enter again. They also enter when the launcher tells of hosts.
TRAINS = WITHOUT_TORCH + textwrap.dedent("""
    import select, socket

    def connect():
        end = time.monotonic() + 30
        while True:
            try:
                where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                return [socket.create_connection(where, timeout=5)]
            except ConnectionRefusedError:
                assert time.monotonic() < end
                time.sleep(0.01)

    def meet(rank, size):
        if rank:
            return connect()
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
            return [server.accept()[0] for _ in range(size - 1)]

    open("started", "w").close()
    while True:
        member.enter()
        rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        world = int(os.environ["TACORUN_WORLD"])
        others = meet(rank, size)
        with open(f"{world}-{rank}.world", "w") as file:
            file.write(f"{size} {os.getpid()} {os.environ['HOROVOD_HOSTNAME']}")
        print("in world", world, "as rank", rank, flush=True)
        while True:
            readable, _, _ = select.select(others, [], [], 0.02)
            if os.path.exists("stop"):
                sys.exit(0)
            if readable or member.updates():
                break
        for other in others:
            other.close()
""")


class Job:
    """An elastic job in a folder, whose ranks tell by files in which worlds they are."""

    def __init__(self, folder: Path, words: Sequence[str], hosts: str | None) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAINS)
        scripted = [] if hosts is None else discovery(folder, hosts)
        self.process = start([*words, *scripted, PYTHON, "train.py"], folder)

    def world(self, number: int, size: int, seconds: float = 30.0) -> list[int]:
        """The processes of a world, by rank, once all are there."""
        paths = [self.folder / f"{number}-{rank}.world" for rank in range(size)]

        def is_there() -> bool:
            assert self.process.poll() is None, self.stderr()
            return all(path.exists() and path.read_text().count(" ") == 2 for path in paths)

        until(is_there, f"world {number} of {size} ranks", seconds)
        rows = [path.read_text().split() for path in paths]
        assert {row[0] for row in rows} == {str(size)}
        return [int(row[1]) for row in rows]

    def stop(self) -> str:
        """Lets all ranks end well; what the launcher has said."""
        (self.folder / "stop").touch()
        _, stderr = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, stderr
        return str(stderr)

    def stderr(self) -> str:
        _, stderr = self.process.communicate(timeout=30)
        return str(stderr)


@contextlib.contextmanager
def job(folder: Path, *words: str, hosts: str | None = None) -> Iterator[Job]:
    made = Job(folder, words, hosts)
    try:
        yield made
    finally:
        end(made.process)


def test_the_ranks_that_are_left_go_on_in_the_next_world(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "4", "--min-np", "2", "-H", "localhost:4") as made:
        first = made.world(1, 4)
        os.kill(first[1], signal.SIGKILL)
        begun = time.monotonic()
        second = made.world(2, 3)
        assert time.monotonic() - begun < 3
        assert second == [first[0], first[2], first[3]]
        os.kill(second[0], signal.SIGKILL)
        assert made.world(3, 2) == second[1:]
        said = made.stop()
        assert "rank 1 on localhost" in said
        assert "was killed by signal 9 (SIGKILL). Its slot is not used any more" in said
        assert "world 3: 2 ranks on localhost" in said


def test_a_slot_is_used_again_after_its_time(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "1", "-H", "localhost:2"]
    with job(tmp_path, *words, "--blacklist-cooldown-range", "1", "2") as made:
        first = made.world(1, 2)
        os.kill(first[0], signal.SIGKILL)
        assert made.world(2, 1) == [first[1]]
        third = made.world(3, 2)
        assert third[0] == first[1], "rank 0 knows what was trained"
        assert "any more for 1 s" in made.stop()


def test_hosts_that_the_script_adds_are_taken_in(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", "--min-np", "1", hosts="localhost:2") as made:
        first = made.world(1, 2)
        set_hosts(tmp_path, "localhost:2 127.0.0.1:1")
        second = made.world(2, 3)
        assert second[:2] == first
        set_hosts(tmp_path, "localhost:2 127.0.0.1:2")
        assert made.world(3, 4)[:3] == second
        made.stop()


def test_hosts_that_the_script_takes_away_are_left(tmp_path: Path) -> None:
    hosts = "localhost:2 127.0.0.1:2"
    with job(tmp_path, "-np", "4", "--min-np", "1", hosts=hosts) as made:
        first = made.world(1, 4)
        set_hosts(tmp_path, "127.0.0.1:1")
        second = made.world(2, 1)
        assert second == first[2:3]
        all_gone([pid for pid in first if pid not in second])
        assert "was killed" not in made.stop()


def test_a_job_has_no_more_ranks_than_it_may(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", "--max-np", "3", hosts="localhost:5") as made:
        made.world(1, 3)
        made.stop()


def test_a_job_waits_for_the_hosts_that_it_needs(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", "--slots-per-host", "1", hosts="localhost") as made:
        until((tmp_path / "started").exists, "a first rank, which waits")
        set_hosts(tmp_path, "localhost 127.0.0.1")
        made.world(1, 2)
        made.stop()


def test_too_few_ranks_for_too_long_end_the_job(tmp_path: Path) -> None:
    words = ["-np", "2", "--elastic-timeout", "2"]
    with job(tmp_path, *words, hosts="localhost:2") as made:
        first = made.world(1, 2)
        os.kill(first[1], signal.SIGKILL)
        stderr = made.stderr()
        assert made.process.returncode == 1
        assert "1 ranks are left, 2 are needed (--min-np): waiting for hosts" in stderr
        assert "no more hosts or slots came within 2 s (--elastic-timeout)" in stderr
        all_gone(first, 0.5)


def test_a_job_of_given_hosts_that_cannot_go_on_ends_at_once(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", "--min-np", "2", "-H", "localhost:2") as made:
        first = made.world(1, 2)
        os.kill(first[1], signal.SIGKILL)
        stderr = made.stderr()
        assert made.process.returncode == 1
        assert "1 ranks are there, 2 are needed (--min-np), and no more hosts" in stderr
        assert "[1,1]<stdout>:in world 1 as rank 1" in stderr, "the last lines of who has failed"


def test_a_job_whose_ranks_have_all_failed_shows_why(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text(WITHOUT_TORCH + "member.enter()\nsys.exit('a mistake in the program')\n")
    words = ["-np", "2", "--min-np", "1", PYTHON, "fails.py"]
    done = run(words, tmp_path)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("a mistake in the program")


def test_a_job_is_changed_only_so_often(tmp_path: Path) -> None:
    words = ["-np", "3", "--min-np", "1", "--reset-limit", "1", "-H", "localhost:3"]
    with job(tmp_path, *words) as made:
        first = made.world(1, 3)
        os.kill(first[2], signal.SIGKILL)
        second = made.world(2, 2)
        os.kill(second[1], signal.SIGKILL)
        stderr = made.stderr()
        assert made.process.returncode == 1
        assert "more than --reset-limit 1 allows" in stderr


def test_a_script_that_fails_at_first_ends_the_job(tmp_path: Path) -> None:
    for text, said in (
        ("#!/bin/sh\necho broken >&2; exit 3\n", "ended with exit status 3: broken"),
        ("#!/bin/sh\necho a:b:c\n", "line 1: 'a:b:c' names no host"),
    ):
        script = tmp_path / "discover"
        script.write_text(text)
        script.chmod(0o755)
        words = ["-np", "1", "--host-discovery-script", "./discover", "true"]
        done = run(words, tmp_path)
        assert done.returncode == 1
        assert said in done.stderr
    script.write_text("echo $1 >&2; exit 4\n")
    script.chmod(0o644)
    words = ["-np", "1", "--host-discovery-script", "sh discover 'two words'", "true"]
    assert "ended with exit status 4: two words" in run(words, tmp_path).stderr
    missing = run(["-np", "1", "--host-discovery-script", "./none", "true"], tmp_path)
    assert missing.returncode == 1
    assert "./none cannot be run: No such file or directory" in missing.stderr


def test_a_script_that_fails_later_leaves_the_hosts_as_they_were(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", hosts="localhost:2") as made:
        first = made.world(1, 2)
        (tmp_path / "hosts").rename(tmp_path / "away")
        failures = tmp_path / "failures"
        until(lambda: failures.exists() and len(failures.read_text()) > 1, "two failures")
        assert all(map(is_alive, first))
        said = made.stop()
        assert "The hosts stay as they were" in said


def test_a_signal_ends_an_elastic_job(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", hosts="localhost:2") as made:
        first = made.world(1, 2)
        made.process.send_signal(signal.SIGINT)
        made.stderr()
        assert made.process.returncode == 128 + signal.SIGINT
        all_gone(first, 0.5)


def test_ranks_of_an_elastic_job_do_not_outlive_its_launcher(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", hosts="localhost:2") as made:
        first = made.world(1, 2)
        made.process.send_signal(signal.SIGKILL)
        all_gone(first)


def listening_ports(pid: int) -> list[int]:
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            inodes |= {found[1]} if found else set()
    ports = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.append(int(words[1].rpartition(":")[2], 16))
    return ports


def test_a_stranger_gets_no_place(tmp_path: Path) -> None:
    with job(tmp_path, "-np", "2", hosts="localhost:2") as made:
        made.world(1, 2)
        (port,) = listening_ports(made.process.pid)
        for words in (
            b'{"nonce": "0", "worker": 1, "proof": "0"}\n',
            b"GET / HTTP/1.0\r\n\r\n",
            b"\xff" * 100_000,
            b'{"nonce": 0}\n',
            b"[]\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(words)
                    stranger.sendall(b'{"do": "enter"}\n')
                answer = b""
                with contextlib.suppress(ConnectionError):
                    while data := stranger.recv(4096):
                        answer += data
                assert answer.count(b"\n") <= 2, "a token and a nonce, and no proof"
                assert b"proof" not in answer
        made.stop()


def test_a_rank_without_its_launcher_says_so(tmp_path: Path) -> None:
    program = tmp_path / "alone.py"
    program.write_text(WITHOUT_TORCH + "member.enter()\n")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    variables = {"TACORUN_MEETING": f"127.0.0.1 {port}", "TACORUN_KEY": "0", "TACORUN_WORKER": "1"}
    done = subprocess.run(
        [PYTHON, str(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "LauncherLost: tacorun has gone" in done.stderr
