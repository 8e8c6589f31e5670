"""tacorun for tests: the command, started without torch, little programs for its ranks, and a watch
over the processes that it should leave nothing of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts import write_program
from signals import default_signals

TACORUN = [sys.executable, "-c", "from _taco_torch_commands import tacorun; tacorun()"]
DEADLINE_S = 60.0
# A program of the elastic tests speaks with the launcher without importing torch.
WITHOUT_TORCH = textwrap.dedent("""
    import importlib.util, os, sys, time
    found = importlib.util.find_spec("taco_torch")
    sys.modules["taco_torch"] = importlib.util.module_from_spec(found)
    from taco_torch.launch import member
""")
# A rank with two helpers, of which none heeds SIGTERM; each leaves its number in NAME.pid.
SLEEPS = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank = os.environ["HOROVOD_RANK"]
    # A helper in the rank's process group, and one that has left it.
    for name, apart in (("helper", False), ("apart", True)):
        child = subprocess.Popen(["sleep", "600"], start_new_session=apart)
        with open(f"{name}-{rank}.pid", "w") as file:
            file.write(str(child.pid))
    with open(f"rank-{rank}.pid", "w") as file:
        file.write(str(os.getpid()))
    print("asleep", flush=True)
    time.sleep(600)
"""

# Ranks that meet where their variables say: each tells where that is, all but rank 0 that they met.
MEETS = """
    import os, socket, time
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    print(os.environ["HOROVOD_HOSTNAME"], where[0])
    if rank == 0:
        with socket.create_server(("", where[1])) as server:
            for _ in range(size - 1):
                with server.accept()[0] as other:
                    other.sendall(b"welcome")
    else:
        deadline = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(where, timeout=5) as first:
                    print(first.recv(100).decode())
                    break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
"""


def write(folder: Path, text: str, name: str = "program.py") -> str:
    """A program in a folder; its path."""
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def environment(**more: str) -> dict[str, str]:
    """This process's own, without what a launcher of the tests themselves may have set."""
    found = {name: text for name, text in os.environ.items() if not name.startswith("HOROVOD_")}
    return {**found, **more}


def start(
    words: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    stdout: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """tacorun with these arguments, in a session of its own."""
    return subprocess.Popen(
        [*prefix, *TACORUN, *words],
        cwd=folder,
        env=environment(**(variables or {})),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
        start_new_session=True,
        preexec_fn=default_signals,
    )


def run(
    words: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    timeout: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """tacorun to its end, in which it must come to it."""
    process = start(words, folder, variables, prefix)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        end(process)
    return subprocess.CompletedProcess(list(words), process.returncode, stdout, stderr)


def end(process: subprocess.Popen[str]) -> None:
    """Kills what is left of it, if anything is."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def until(happened: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """Waits for it."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pids_in(folder: Path, count: int) -> list[int]:
    """The numbers of so many processes, of which each writes a file NAME.pid."""
    until(
        lambda: sum(bool(p.read_text()) for p in folder.glob("*.pid")) >= count,
        f"{count} processes in {folder}",
    )
    return [int(path.read_text()) for path in folder.glob("*.pid")]


def all_gone(pids: Sequence[int], seconds: float = 10.0) -> None:
    until(lambda: not any(map(is_alive, pids)), f"the end of processes {pids}", seconds)


def set_hosts(folder: Path, hosts: str) -> None:
    """The hosts that the script of discovery() finds; whole at any moment."""
    new = folder / "new-hosts"
    new.write_text("".join(f"{host}\n" for host in hosts.split()))
    new.rename(folder / "hosts")


def discovery(folder: Path, hosts: str) -> list[str]:
    """Words for a tacorun in that folder, whose script prints the file `hosts`, and counts in
    `failures` how often there was none."""
    write_program(folder / "discover", "cat hosts || { echo >>failures; exit 1; }\n")
    set_hosts(folder, hosts)
    return ["--host-discovery-script", "./discover"]


def lines_of(text: str, rank: int, stream: str = "stdout") -> list[str]:
    """The lines that a rank has written, as tacorun has printed them."""
    prefix = f"[1,{rank}]<{stream}>:"
    return [line[len(prefix) :] for line in text.splitlines() if line.startswith(prefix)]
