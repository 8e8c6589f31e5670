"""Python programs for tests, in processes forked from one that has imported torch already.

    with WarmPython(["torch", "lightning"]) as python:
        ranks = [python.popen([script, "taco"], env=variables[rank]) for rank in range(2)]
        status = wait_all(ranks)

Importing torch takes two seconds of a processor; so programs whose import is not what is tested
are started here. They begin and end as other programs do: ``-c``, a script or ``-m`` as __main__,
an environment and standard streams of their own, and an interpreter that is taken down at the end.
What the modules read from the environment while they are imported is what the server had.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

STARTED_S = 300.0  # until all modules have been imported


class WarmProcess:
    """As much of subprocess.Popen as tests need."""

    def __init__(self, python: WarmPython, pid: int) -> None:
        self._python = python
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self._python.collect(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._python.collect(left)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self.wait(10)


class WarmPython:
    """A server that has imported ``modules`` under ``environment``. Use as a context manager."""

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._running: dict[int, WarmProcess] = {}
        command = [sys.executable, __file__, str(theirs.fileno()), *modules]
        self._server = subprocess.Popen(
            command, env={**os.environ, **(environment or {})}, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        try:
            self._receive(STARTED_S)
        except BaseException:
            self._server.kill()
            self._server.wait()
            raise

    def popen(
        self,
        arguments: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: int = 1,
        stderr: int = 2,
    ) -> WarmProcess:
        """Starts what stands behind ``python`` on a command line: "-c" and code, "-m" and a
        module, or a script; then arguments. ``stdout`` and ``stderr`` are descriptors."""
        request = {
            "arguments": [str(argument) for argument in arguments],
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or Path.cwd()),
        }
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.flush()
            socket.send_fds(self._socket, [b"start"], [file.fileno(), stdout, stderr])
        while True:
            answer = self._receive(STARTED_S)
            if "started" in answer:
                process = WarmProcess(self, answer["started"])
                self._running[process.pid] = process
                return process
            self._note(answer)

    def run(
        self,
        arguments: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run() with captured output."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.popen(arguments, env, cwd, out.fileno(), err.fileno())
            try:
                process.wait(timeout)
            finally:
                process.end()
            out.seek(0)
            err.seek(0)
            texts = out.read().decode(), err.read().decode()
        return subprocess.CompletedProcess(list(arguments), process.wait(), *texts)

    def collect(self, timeout: float | None) -> None:
        """Notes processes that have ended; waits so long for the first."""
        while select.select([self._socket], [], [], timeout)[0]:
            self._note(self._receive(STARTED_S))
            timeout = 0.0

    def close(self) -> None:
        for process in list(self._running.values()):
            process.end()
        self._socket.close()  # the server ends, once it is told so
        self._server.wait(30)

    def _note(self, answer: dict[str, Any]) -> None:
        self._running.pop(answer["ended"]).returncode = answer["status"]

    def _receive(self, timeout: float) -> dict[str, Any]:
        self._socket.settimeout(timeout)
        data = self._socket.recv(1 << 16)
        if not data:
            raise RuntimeError(f"the server has ended with {self._server.wait(10)}")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def __enter__(self) -> WarmPython:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- the server


def _become(request: dict[str, Any], files: Sequence[int]) -> Callable[[], None]:
    """Makes this process the one that was asked for; returns what it is to run."""
    import runpy

    for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *files]):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    kind, *rest = request["arguments"]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        code = compile(rest[0], "<string>", "exec")
        names = {"__name__": "__main__", "__builtins__": __builtins__}
        return lambda: exec(code, names)
    if kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        sys.path[0] = os.getcwd()
        return lambda: _discard(runpy.run_module(rest[0], None, "__main__", alter_sys=True))
    sys.argv = [kind, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(kind))
    return lambda: _discard(runpy.run_path(kind, run_name="__main__"))


def _discard(_: object) -> None:
    """A program's names are gone before the interpreter is."""


def _serve(connection: socket.socket) -> Callable[[], None] | None:
    """Forks until the other side is gone. In a forked process: what it is to run."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    connection.send(b"{}")
    while True:
        ready = select.select([connection, readable], [], [])[0]
        if readable in ready:
            os.read(readable, 1 << 12)
            _tell_of_ended(connection)
        if connection not in ready:
            continue
        message, files, *_ = socket.recv_fds(connection, 16, 3)
        if not message:
            return None
        with os.fdopen(files.pop(0), "rb") as file:
            file.seek(0)
            request = json.load(file)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (connection.detach(), readable, writable):
                os.close(descriptor)
            return _become(request, files)
        for descriptor in files:
            os.close(descriptor)
        connection.send(json.dumps({"started": pid}).encode())


def _tell_of_ended(connection: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError, BrokenPipeError, ConnectionResetError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = os.waitstatus_to_exitcode(ended[1])
            connection.send(json.dumps({"ended": ended[0], "status": status}).encode())


def main() -> None:
    import importlib

    descriptor, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    importlib.import_module("frozen_heap")
    program = _serve(socket.socket(fileno=int(descriptor)))
    if program is not None:
        program()


if __name__ == "__main__":
    main()
