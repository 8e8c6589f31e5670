"""The hosts of an elastic job: a script of the user's says every second which there are.

A thread runs the script and puts what changes among the session's events:
{"is": "hosts", "hosts": [Host, ...]}, or {"is": "undiscovered", "text": ...} for the very first
run, which must succeed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from taco_torch.launch.errors import LaunchError
from taco_torch.launch.hosts import Host, joined, parse_line
from taco_torch.launch.output import say

_EVERY_S = 1.0
_LONGEST_S = 60.0


class Discovery:
    """Runs ``script`` until close(). Its lines are "name" or "name:slots"."""

    def __init__(self, script: str, slots: int | None, events: SimpleQueue[Any]) -> None:
        self._script = script
        self._slots = slots
        self._events = events
        self._ended = threading.Event()
        self._running: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="tacorun hosts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        while self._thread.is_alive():
            running = self._running
            if running is not None and running.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
            self._thread.join(0.1)

    def _run(self) -> None:
        known: Sequence[Host] | None = None
        trouble = ""
        while not self._ended.is_set():
            try:
                found = self._look()
                trouble = ""
                if found != known:
                    known = found
                    self._events.put((None, {"is": "hosts", "hosts": found}))
            except LaunchError as error:
                if known is None:
                    self._events.put((None, {"is": "undiscovered", "text": str(error)}))
                    return
                if str(error) != trouble and not self._ended.is_set():
                    trouble = str(error)
                    say(f"{trouble}. The hosts stay as they were")
            self._ended.wait(_EVERY_S)

    def _look(self) -> list[Host]:
        name = f"--host-discovery-script {self._script}"
        try:
            self._running = subprocess.Popen(
                shlex.split(self._script),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"{name} cannot be run: {error.strerror}") from None
        try:
            output, errors = self._running.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.communicate()
            raise LaunchError(f"{name} took more than {_LONGEST_S:g} s") from None
        if self._running.returncode != 0:
            status = self._running.returncode
            raise LaunchError(f"{name} ended with exit status {status}: {errors.strip()[-500:]}")
        lines = enumerate(output.splitlines(), 1)
        found = [parse_line(line, f"{name}, line {at}", self._slots) for at, line in lines]
        return joined(host for host in found if host)
