"""tacorun on this host: what ranks find, what becomes of their output, and of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from launching import (
    MEETS,
    SLEEPS,
    all_gone,
    end,
    environment,
    is_alive,
    lines_of,
    pids_in,
    run,
    start,
    until,
    write,
)

from taco_torch.launch import link
from taco_torch.launch.messages import decoded, encoded
from taco_torch.launch.ssh import SUPERVISOR, Ssh

PYTHON = sys.executable

# The place of each rank


def test_every_rank_finds_its_place_in_horovod_s_variables_and_in_torch_s(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import os
        names = "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE "
        names += "HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE HOROVOD_HOSTNAME "
        names += "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"
        print(*(os.environ[name] for name in names.split()))
        print(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], os.getcwd())
        """,
    )
    done = run(["-np", "3", "-H", "localhost:2,127.0.0.1:2", PYTHON, program], tmp_path)
    assert done.returncode == 0, done.stderr
    places = [lines_of(done.stdout, rank) for rank in range(3)]
    assert places[0][0] == "0 3 0 2 0 2 localhost 0 3 0 2"
    assert places[1][0] == "1 3 1 2 0 1 localhost 1 3 1 2"
    assert places[2][0] == "2 3 0 1 1 2 127.0.0.1 2 3 0 1"
    assert len({place[1] for place in places}) == 1, "all meet at the same place"
    address, port, folder = places[0][1].split()
    assert folder == str(tmp_path.resolve())
    assert int(port) > 0
    assert address


def test_ranks_meet_where_they_are_told(tmp_path: Path) -> None:
    done = run(["-np", "3", PYTHON, write(tmp_path, MEETS)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [lines_of(done.stdout, rank)[1:] for rank in (1, 2)] == [["welcome"], ["welcome"]]


def test_the_environment_goes_along_but_for_another_launcher_s_ranks(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import os
        others = "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_STEP_ID"
        for name in ("MINE", "NEW", *others, "SLURM_JOB_ID", "RANK", "SAID"):
            print(name, os.environ.get(name))
        """,
    )
    variables = {"MINE": "a b", "OMPI_COMM_WORLD_RANK": "7", "RANK": "7", "SAID": "before"}
    variables |= {"TORCHELASTIC_RUN_ID": "7", "SLURM_PROCID": "7", "SLURM_STEP_ID": "7"}
    variables["SLURM_JOB_ID"] = "7"
    words = ["-np", "1", "-x", "NEW=1=2", "-x", "SAID=after", "-x", "MINE", PYTHON, program]
    done = run(words, tmp_path, variables)
    assert lines_of(done.stdout, 0) == [
        "MINE a b",
        "NEW 1=2",
        "OMPI_COMM_WORLD_RANK None",
        "TORCHELASTIC_RUN_ID None",
        "SLURM_PROCID None",
        "SLURM_STEP_ID None",
        "SLURM_JOB_ID 7",
        "RANK 0",
        "SAID after",
    ], done.stderr


def test_flags_of_horovodrun_set_its_variables(tmp_path: Path) -> None:
    flags = {
        "--fusion-threshold-mb 32": ("HOROVOD_FUSION_THRESHOLD", str(32 << 20)),
        "--cycle-time-ms 2.5": ("HOROVOD_CYCLE_TIME", "2.5"),
        "--cache-capacity 100": ("HOROVOD_CACHE_CAPACITY", "100"),
        "--timeline-filename t.json": ("HOROVOD_TIMELINE", "t.json"),
        "--timeline-mark-cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", "1"),
        "--no-stall-check": ("HOROVOD_STALL_CHECK_DISABLE", "1"),
        "--stall-check-warning-time-seconds 5": ("HOROVOD_STALL_CHECK_TIME_SECONDS", "5"),
        "--stall-check-shutdown-time-seconds 9": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "9"),
        "--autotune": ("HOROVOD_AUTOTUNE", "1"),
    }
    words = ["-np", "1", *" ".join(flags).split(), "env"]
    done = run(words, tmp_path)
    found = dict(line.split("=", 1) for line in lines_of(done.stdout, 0) if "=" in line)
    for name, value in flags.values():
        assert found[name] == value, done.stderr
    assert "--autotune has no effect" in done.stderr


# Output


def test_output_comes_in_whole_lines_and_in_each_rank_s_order(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        r"""
        import os, sys
        for number in range(2000):
            os.write(1, b"out ")
            os.write(1, str(number).encode() + b"\n")
            os.write(2, f"err {number}\n".encode())
        sys.stdout.buffer.write(b"no UTF-8: \xff\xfe, and no end of line")
        """,
    )
    process = start(["-np", "3", PYTHON, program], tmp_path)
    stdout, stderr = (text for text in process.communicate(timeout=60))
    assert process.returncode == 0, stderr
    for rank in range(3):
        lines = lines_of(stdout, rank)
        assert lines[:-1] == [f"out {number}" for number in range(2000)]
        assert lines[-1].startswith("no UTF-8: ")
        assert lines_of(stderr, rank, "stderr") == [f"err {number}" for number in range(2000)]
    prefix = re.compile(r"\[1,[0-2]\]<std(out|err)>:")
    assert all(prefix.match(line) for line in (stdout + stderr).splitlines())


def test_output_is_written_to_files_byte_by_byte(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        r"""
        import os
        os.write(1, b"a\xff\r\n50%\r100%\n" + os.environ["RANK"].encode())
        os.write(2, b"error\n")
        """,
    )
    words = ["-np", "11", "-H", "localhost:11", "--output-filename", "logs/of", PYTHON, program]
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "logs" / "of"
    assert sorted(path.name for path in folder.iterdir())[:2] == ["rank.00", "rank.01"]
    for rank in range(11):
        own = folder / f"rank.{rank:02d}"
        assert (own / "stdout").read_bytes() == b"a\xff\r\n50%\r100%\n" + str(rank).encode()
        assert (own / "stderr").read_bytes() == b"error\n"


def test_lines_begin_with_the_time_where_that_is_asked_for(tmp_path: Path) -> None:
    done = run(["-np", "1", "--prefix-output-with-timestamp", "echo", "here"], tmp_path)
    assert re.fullmatch(r"\w{3} \w{3} +\d+ [\d:]{8} \d{4}\[1,0\]<stdout>:here\n", done.stdout)


def test_ranks_end_when_nobody_reads_their_output_any_more(tmp_path: Path) -> None:
    process = start(["-np", "2", "yes"], tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(">:y\n")
        process.stdout.close()
        assert process.wait(20) == 141
    finally:
        end(process)


# The supervisor and the launcher, each on its own


@contextlib.contextmanager
def supervisor(silence_s: float) -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(
        [PYTHON, "-c", SUPERVISOR], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        tell(made, {"do": "hello", "silence_s": silence_s})
        assert made.stdout is not None
        assert decoded(made.stdout.readline())["is"] == "ready"
        yield made
    finally:
        made.kill()
        made.communicate()


def tell(process: subprocess.Popen[bytes], message: dict[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(encoded(message))
    process.stdin.flush()


def start_rank(process: subprocess.Popen[bytes], folder: Path, program: str) -> None:
    words = [PYTHON, program]
    whole = {"environment": environment(), "inherit": False, "folder": str(folder)}
    tell(process, {"do": "start", "key": 1, "command": words, **whole})


def test_ranks_outlive_an_output_that_nobody_reads(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import os
        with open("rank.pid", "w") as file:
            file.write(str(os.getpid()))
        while True:
            print("x" * 1000)
        """,
    )
    with supervisor(silence_s=0.5) as made:
        start_rank(made, tmp_path, program)
        (pid,) = pids_in(tmp_path, 1)
        end_of_pause = time.monotonic() + 2.0
        while time.monotonic() < end_of_pause:  # the launcher lives, and does not read
            tell(made, {"do": "beat"})
            assert is_alive(pid)
            time.sleep(0.05)
        assert made.stdout is not None
        for _ in range(200):
            tell(made, {"do": "beat"})
            assert decoded(made.stdout.readline())["is"] == "output"
        assert is_alive(pid)
    all_gone([pid])


@pytest.mark.parametrize("count", [10_000, 36_000])
def test_the_last_words_of_a_rank_arrive_however_late_they_are_read(
    tmp_path: Path, count: int
) -> None:
    """So many lines of ten bytes fill the pipes on the way."""
    program = write(
        tmp_path,
        f"""
        import os
        with open("rank.pid", "w") as file:
            file.write(str(os.getpid()))
        os.write(1, b"".join(b"%09d\\n" % number for number in range({count})))
        """,
    )
    with supervisor(silence_s=0.0) as made:
        start_rank(made, tmp_path, program)
        (pid,) = pids_in(tmp_path, 1)
        all_gone([pid])
        time.sleep(0.5)  # for longer than its pipes may be held open by others
        assert made.stdout is not None
        text = ""
        while (message := decoded(made.stdout.readline()))["is"] == "output":
            text += message["text"]
        assert message["is"] == "exit"
        assert text.split() == [f"{number:09d}" for number in range(count)]


def test_a_host_hears_of_its_launcher_while_the_session_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With writing output, say, that nobody reads: here it does not exist at all."""
    monkeypatch.setattr(link, "BEAT_S", 0.05)
    program = write(
        tmp_path,
        f"""
        import sys
        with open("{tmp_path}/heard", "w", buffering=1) as file:
            for line in sys.stdin:
                file.write(line)
        """,
    )
    made = link.Link("h1", Ssh(command=[PYTHON, program]), os.environ, SimpleQueue())
    try:
        heard = tmp_path / "heard"
        until(lambda: heard.exists() and heard.read_text().count('"beat"') > 2, "three beats", 20)
    finally:
        made.close()
        made.kill()


# How a job ends


def test_the_first_rank_that_fails_ends_all_and_its_last_lines_are_shown(tmp_path: Path) -> None:
    write(tmp_path, SLEEPS, "sleeps.py")
    program = write(
        tmp_path,
        """
        import os, sys, time
        if os.environ["RANK"] != "1":
            exec(open("sleeps.py").read())
        while not all(os.path.exists(f"rank-{rank}.pid") for rank in (0, 2)):
            time.sleep(0.01)
        for number in range(100):
            print("line", number, file=sys.stderr)
        print(time.time(), file=open("failed", "w"))
        sys.exit(3)
        """,
    )
    done = run(["-np", "3", PYTHON, program], tmp_path)
    took = time.time() - float((tmp_path / "failed").read_text())
    assert done.returncode == 3
    said = done.stderr[done.stderr.index("tacorun: ") :]
    assert re.search(r"rank 1 on localhost \(pid \d+\) ended with exit status 3", said), said
    assert "[1,1]<stderr>:line 99" in said
    assert "[1,1]<stderr>:line 70" not in said
    all_gone(pids_in(tmp_path, 6), 0.5)
    assert took < 5.0


def test_a_rank_that_is_killed_is_named_with_the_signal(tmp_path: Path) -> None:
    program = write(tmp_path, "import os; print('now', flush=True); os.kill(os.getpid(), 11)")
    done = run(["-np", "2", PYTHON, program], tmp_path)
    assert done.returncode == 128 + signal.SIGSEGV
    assert re.search(r"rank [01] on localhost .* was killed by signal 11 \(SIGSEGV\)", done.stderr)


def test_all_ranks_come_to_their_end(tmp_path: Path) -> None:
    """A rank that ends well ends nobody else."""
    program = write(
        tmp_path,
        """
        import os, time
        rank = int(os.environ["RANK"])
        deadline = time.monotonic() + 30
        while rank and not os.path.exists(str(rank - 1)) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2 * (rank > 0))
        open(str(rank), "w")
        """,
    )
    done = run(["-np", "3", PYTHON, program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "2").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    program = write(tmp_path, SLEEPS)
    process = start(["-np", "2", PYTHON, program], tmp_path)
    try:
        pids = pids_in(tmp_path, 6)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 128 + number
        assert number.name in stderr
        all_gone(pids, 0.5)
    finally:
        end(process)


def test_a_launcher_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    process = start(["-np", "1", PYTHON, write(tmp_path, SLEEPS)], tmp_path, prefix=["nohup"])
    try:
        pids = pids_in(tmp_path, 3)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        all_gone(pids)
    finally:
        end(process)


def test_ranks_do_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    program = write(tmp_path, SLEEPS)
    process = start(["-np", "2", PYTHON, program], tmp_path)
    try:
        pids = pids_in(tmp_path, 6)
        process.send_signal(signal.SIGKILL)
        all_gone(pids)
    finally:
        end(process)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_ranks_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    program = write(tmp_path, SLEEPS)
    process = start(["-np", "2", PYTHON, program], tmp_path)
    try:
        pids = pids_in(tmp_path, 6)
        supervisor = parent_of(int((tmp_path / "rank-0.pid").read_text()))
        assert supervisor != process.pid
        os.kill(supervisor, signal.SIGKILL)
        _, stderr = process.communicate(timeout=15)
        assert process.returncode == 1
        assert "the supervisor of the ranks on localhost ended (status -9)" in stderr
        all_gone(pids, 0.5)
    finally:
        end(process)


def test_what_a_rank_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import subprocess
        child = subprocess.Popen(["sleep", "600"])
        open("helper.pid", "w").write(str(child.pid))
        """,
    )
    begun = time.monotonic()
    done = run(["-np", "1", PYTHON, program], tmp_path)
    assert done.returncode == 0, done.stderr
    all_gone(pids_in(tmp_path, 1), 0.5)
    assert time.monotonic() - begun < 30


# Arguments and files


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-np", "5", "-H", "h1:2,h2:2", "true"], "-np 5: h1:2, h2:2 have 4 slots"),
        (["-np", "2", "-H", "h1:x", "true"], "slots must be a number from 1 on, not 'x'"),
        (["-np", "2", "-H", "h1:0", "true"], "slots must be a number from 1 on, not '0'"),
        (["-np", "2", "-H", "h1:2,,h2", "true"], "'' names no host"),
        (["-np", "2", "--hosts=-oProxyCommand=x:2", "true"], "names no host"),
        (["-np", "2"], "which program?"),
        (["true"], "how many ranks?"),
        (["-np", "0", "true"], "0 is below 1"),
        (["-np", "two", "true"], "invalid"),
        (["-np", "1", "-x", "NOWHERE_SET", "true"], "-x NOWHERE_SET: it is not set here"),
        (["-np", "1", "-x", "1A=2", "true"], "'1A' is no name of a variable"),
        (["-np", "1", "--mpi", "true"], "--mpi: start the program by mpirun itself"),
        (["-np", "1", "--max-np", "3", "true"], "--max-np is for elastic jobs"),
        (["-np", "1", "--min-np", "2", "true"], "--min-np 2 is more than -np 1"),
        (["-np", "2", "--min-np", "1", "--max-np", "1", "true"], "--max-np 1 is less than -np 2"),
        (["-np", "1", "--network-interfaces", "no0", "true"], "no address at no0"),
        (["-np", "1", "--hostfile", "none", "true"], "--hostfile none cannot be read"),
        (["-np", "1", "--unknown", "true"], "--unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, words: list[str], text: str) -> None:
    done = run(words, tmp_path)
    assert done.returncode != 0
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("h1 slots=two\n", "hosts, line 1: slots must be a number from 1 on, not 'two'"),
        ("h1 slots=2\n\nh2 slots=0\n", "hosts, line 3: slots must be a number"),
        ("h1 slots 2\n", "hosts, line 1: 'slots' is unknown; a line is NAME slots=NUMBER"),
        ("h1 cpus=2\n", "hosts, line 1: 'cpus=2' is unknown"),
        ("@h1 slots=2\n", "hosts, line 1: '@h1' names no host"),
        ("# nobody\n\n", "--hostfile hosts names no host"),
        ("h1 slots=1\n", "-np 2: h1:1 have 1 slots"),
        ("\x00\xff", "names no host"),
    ],
)
def test_errors_of_a_hostfile_are_named_with_their_line(
    tmp_path: Path, content: str, text: str
) -> None:
    (tmp_path / "hosts").write_text(content)
    done = run(["-np", "2", "--hostfile", "hosts", "true"], tmp_path)
    assert done.returncode == 1
    assert text in done.stderr


def test_a_hostfile_is_read_as_horovodrun_and_mpirun_do(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(
        "# all of this host\nlocalhost slots=1 max_slots=4\n\n127.0.0.1:1 # two\nlocalhost\n"
    )
    words = ["-np", "3", "--hostfile", "hosts", "sh", "-c", "echo $HOROVOD_HOSTNAME"]
    done = run(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [lines_of(done.stdout, rank) for rank in range(3)] == [
        ["localhost"],
        ["localhost"],
        ["127.0.0.1"],
    ]


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(["-np", "2", "pyhton", "train.py"], tmp_path)
    assert done.returncode == 127
    assert "was not started: pyhton cannot be started: No such file or directory" in done.stderr


def test_the_command_tells_its_version_and_what_it_was_built_with(tmp_path: Path) -> None:
    version = run(["--version"], tmp_path)
    assert re.fullmatch(r"tacorun \S+\n", version.stdout)
    built = run(["--check-build"], tmp_path)
    assert built.returncode == 0
    assert re.search(r"\[X\] PyTorch", built.stdout), built.stdout
    assert "[ ] MPI" in built.stdout


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-m", "taco_torch.launch", "-np", "1", "echo", "here"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[1,0]<stdout>:here\n", done.stderr


def test_the_launcher_needs_no_torch(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
        import sys
        from _taco_torch_commands import tacorun
        sys.modules["torch"] = None  # an import would raise
        sys.argv[1:] = ["-np", "1", "echo", "here"]
        tacorun()
        """,
    )
    done = subprocess.run(
        [PYTHON, program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "[1,0]<stdout>:here\n", done.stderr


def catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
    assert caught is not None
    return bool(int(caught[1], 16) >> (number - 1) & 1)


def waiting_in(pipe: int) -> int:
    """How many bytes nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_second_signal_ends_a_launcher_whose_reader_has_stopped(tmp_path: Path) -> None:
    process = start(["-np", "2", "yes"], tmp_path)
    try:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        until(lambda: waiting_in(pipe) >= 60_000, "a full pipe")
        process.send_signal(signal.SIGINT)
        until(lambda: not catches(process.pid, signal.SIGINT), "the first signal", 10)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
    finally:
        end(process)
