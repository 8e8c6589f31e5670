"""The launcher's end of one host: a supervisor there, and the threads that talk with it.

Made by the session (session.py), whose thread calls everything here. A thread reads what the
supervisor sends and puts it among the session's events, another writes: so the session never waits
for a supervisor that waits for the session. Who reads slowly slows the ranks down, as a pipe does:
of each host only so many events lie about at once. But a supervisor on another host hears that the
launcher lives, however long the session waits for whoever reads its output.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import IO, Any

from taco_torch.launch.messages import Lines, Message, decoded, encoded
from taco_torch.launch.ssh import SUPERVISOR, Ssh

_CREDIT = 64  # events of a host that the session has not taken yet
_CHUNK = 1 << 16
SILENCE_S = 120.0  # without a word from the launcher another host's ranks end
BEAT_S = 10.0


class Link:
    """A supervisor, started at once. Its events are ``(link, message)``; the last one "is": "gone",
    and says why."""

    def __init__(
        self,
        host: str,
        ssh: Ssh | None,
        environment: Mapping[str, str],
        events: SimpleQueue[Any],
    ) -> None:
        self.host = host
        self.is_local = ssh is None
        self.ready: Message | None = None
        self._ssh = ssh
        self._events = events
        self._credit = threading.Semaphore(_CREDIT)
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self.errors: deque[str] = deque(maxlen=40)
        line = [sys.executable, "-c", SUPERVISOR] if ssh is None else ssh.line(host, environment)
        self.line = line
        # A session of its own: ^C is for the launcher, which then ends the ranks in order.
        self._process = subprocess.Popen(
            line,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._threads = [
            threading.Thread(target=act, name=f"tacorun {host}", daemon=True)
            for act in (self._read, self._write, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()
        self.send({"do": "hello", "silence_s": 0.0 if ssh is None else SILENCE_S})

    def send(self, message: Message) -> None:
        self._outgoing.put(encoded(message))

    def taken(self) -> None:
        """The session has taken an event of this link."""
        self._credit.release()

    def close(self) -> None:
        """Has the supervisor end its ranks, and itself."""
        self._outgoing.put(None)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def explain(self, status: int | None, lines: Sequence[str]) -> str:
        if self._ssh is not None:
            return self._ssh.explain(self.host, status, lines)
        said = "".join(f"\n  {line}" for line in lines[-5:])
        return f"the supervisor of the ranks on {self.host} ended (status {status}){said}"

    # Threads

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        lines = Lines()
        try:
            while data := _some(output):
                for line in lines.feed(data):
                    self._hear(line)
        except ValueError as error:
            self.errors.append(f"what answers is no supervisor: {error}")
            self.kill()
        self._threads[2].join()
        status = self._process.wait()
        text = self.explain(status, list(self.errors))
        self._credit.acquire()
        self._events.put((self, {"is": "gone", "text": text}))

    def _hear(self, line: bytes) -> None:
        try:
            message = decoded(line)
        except ValueError:  # what a login shell's start-up files print
            self.errors.append(line.decode("utf-8", "replace"))
            return
        self._credit.acquire()
        self._events.put((self, message))

    def _read_errors(self) -> None:
        errors = self._process.stderr
        assert errors is not None
        for line in errors:
            self.errors.append(line.decode("utf-8", "replace").rstrip())

    def _write(self) -> None:
        commands = self._process.stdin
        assert commands is not None
        # A supervisor that has gone hears nothing: _read says that it has.
        with contextlib.suppress(OSError), commands:
            while (data := self._next_word()) is not None:
                commands.write(data)
                commands.flush()

    def _next_word(self) -> bytes | None:
        """The message to be sent next: to another host a beat, where there is no other for so
        long. None: it is over."""
        try:
            return self._outgoing.get(timeout=None if self.is_local else BEAT_S)
        except Empty:
            return encoded({"do": "beat"})


def _some(stream: IO[bytes]) -> bytes:
    read1 = getattr(stream, "read1", stream.read)
    return bytes(read1(_CHUNK))
