"""One rank, as the supervisor of its host sees it: a process in a session of its own, two pipes.

Belongs to the supervisor (remote.py), whose only thread calls it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

from taco_torch.launch.messages import as_text

_PR_SET_PDEATHSIG = 1
# How long the pipes of a rank that has ended may still be held open, by processes that have left
# its process group.
_LEFT_OPEN_S = 0.3
_LONGEST_LINE = 1 << 20
# The last end of a line. A carriage return that nothing follows may be half of one.
_END_OF_LINE = re.compile(rb"(?:\n|\r(?!\Z))(?=[^\r\n]*\r?\Z)")


class CannotStart(Exception):
    """There is no such program or folder; the text says which."""


class SupervisedRank:
    """Starts it. ``streams`` are the descriptors that it writes to, and their names."""

    def __init__(
        self, key: int, command: Sequence[str], environment: Mapping[str, str], folder: str
    ) -> None:
        self.key = key
        self.status: int | None = None  # as subprocess has it: below 0 are signals
        self._ended = 0.0
        self._kill_at: float | None = None
        if not os.path.isdir(folder):
            raise CannotStart(
                f"there is no folder {folder} here: start tacorun in one that all hosts have"
            )
        libc, supervisor = ctypes.CDLL(None), os.getpid()

        def die_with_the_supervisor() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:  # which has ended in the meantime
                os._exit(1)

        try:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_the_supervisor,  # safe: the supervisor has one thread
            )
        except OSError as error:
            raise CannotStart(
                f"{command[0]} cannot be started: {error.strerror} "
                f"(PATH={environment.get('PATH', '')})"
            ) from None
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._files = {file.fileno(): file for file in (self._process.stdout, self._process.stderr)}
        self.streams = dict(zip(self._files, ("stdout", "stderr"), strict=True))
        self._rests = dict.fromkeys(self._files, b"")

    def read(self, stream: int) -> str | None:
        """The whole lines that have come; None at the end of the stream."""
        data = os.read(stream, 1 << 16)
        if not data:
            return None
        data = self._rests[stream] + data
        end = _END_OF_LINE.search(data)
        cut = end.end() if end else 0
        if len(data) - cut > _LONGEST_LINE:
            cut = len(data)
        self._rests[stream] = data[cut:]
        return as_text(data[:cut])

    def close(self, stream: int) -> str:
        """All that it has written and that was not read, and a last line that has no end. Others
        who still hold the pipe open may write on: what comes from now on is lost."""
        waiting = fcntl.ioctl(stream, termios.FIONREAD, bytes(4))
        last = os.read(stream, int.from_bytes(waiting, sys.byteorder))
        del self.streams[stream]
        self._files.pop(stream).close()
        return as_text(self._rests.pop(stream) + last)

    def collect(self) -> None:
        """Takes its status, now that it has ended; its process group ends with it."""
        self._signal_group(signal.SIGKILL)  # while its number cannot be another's
        self.status = self._process.wait()
        self._ended = time.monotonic()
        self._kill_at = None

    def is_over(self) -> bool:
        """Whether it has ended and all that it wrote was read."""
        if self.status is None:
            return False
        return not self.streams or time.monotonic() - self._ended >= _LEFT_OPEN_S

    def due_in(self) -> float | None:
        """Seconds until end_when_due() or is_over() has something new to say by itself."""
        if self.status is not None:
            return self._ended + _LEFT_OPEN_S - time.monotonic()
        return None if self._kill_at is None else self._kill_at - time.monotonic()

    def signal(self, number: int) -> None:
        if self.status is None:
            self._signal_group(number)

    def end(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL if it then lives on for as long. A second call can but hasten it."""
        at = time.monotonic() + grace_s
        if self._kill_at is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)

    def end_when_due(self) -> None:
        if self.status is None and self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self.signal(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
