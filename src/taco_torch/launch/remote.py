"""Supervises the ranks of one host: ``python -m taco_torch.launch.remote``.

The launcher starts one on its own host and, by ssh, one on every other; messages come in on stdin
and go out on stdout (messages.py). When stdin closes, because the launcher has ended in whatever
way or the connection is gone, the ranks end: first SIGTERM, then SIGKILL, to the whole process
group of each. The kernel kills them if the supervisor itself is killed. Processes that a rank has
left behind become the supervisor's children, and end with it.

One thread, one selector, and no write that waits: a launcher that does not read holds back what the
ranks write, as a pipe does, but not what it says itself. Messages in: "hello", "start" (a rank),
"end", "listen", "unlisten", "reach", "beat". Messages out: "ready", "output", "exit", "listening",
"unlistened", "reached".
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable

from taco_torch.launch.messages import Lines, Message, decoded, encoded
from taco_torch.launch.orphans import Orphans
from taco_torch.launch.reach import Listener, interface_addresses, reached
from taco_torch.launch.supervised import CannotStart, SupervisedRank
from taco_torch.launch.version import version

_GRACE_S = 2.0  # from SIGTERM to SIGKILL, where the launcher can no longer say
_MOST_UNSENT = 1 << 18  # bytes; with more no rank is read from


class Supervisor:
    """Made once per process, whose standard streams and SIGCHLD it takes."""

    def __init__(self) -> None:
        self._orphans = Orphans()
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, SupervisedRank] = {}
        self._listener: Listener | None = None
        self._lines = Lines()
        self._leaving = False
        self._answerless = False  # nobody reads what is sent any more
        self._unsent = bytearray()
        self._waits_for_room = False  # to send more
        self._held_back: list[tuple[SupervisedRank, int]] = []  # streams that wait for room there
        self._silence_s = 0.0  # how long the launcher may say nothing; 0: for ever
        self._heard = time.monotonic()
        self._wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._leave())
        os.set_blocking(1, False)
        self._watch(0, self._read_commands)
        self._watch(self._wake, self._wakened)

    def _watch(self, what: int | socket.socket, act: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, act)

    def run(self) -> None:
        while not (self._leaving and not self._ranks):
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            if self._is_silent():
                self._leave()
            for rank in list(self._ranks.values()):
                rank.end_when_due()
                if rank.is_over():
                    self._report(rank)
        self._orphans.kill()
        if not self._is_silent():
            os.set_blocking(1, True)
            self._flush()

    def _is_silent(self) -> bool:
        """Whether the launcher has said nothing for too long."""
        return self._silence_s > 0 and time.monotonic() - self._heard > self._silence_s

    def _timeout(self) -> float | None:
        times = [rank.due_in() for rank in self._ranks.values()]
        if self._silence_s and not self._leaving:
            times.append(self._heard + self._silence_s - time.monotonic() + 0.01)
        soonest = min((each for each in times if each is not None), default=None)
        return None if soonest is None else max(0.0, soonest)

    def _send(self, message: Message) -> None:
        self._unsent += encoded(message)
        self._flush()
        if self._unsent and not self._waits_for_room:
            self._selector.register(1, selectors.EVENT_WRITE, self._go_on)
            self._waits_for_room = True

    def _flush(self) -> None:
        """Sends as much as goes without waiting."""
        try:
            while self._unsent:
                del self._unsent[: os.write(1, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            if not self._answerless:
                self._answerless = True
                self._leave()

    def _go_on(self) -> None:
        """There is room for more."""
        self._flush()
        if not self._unsent:
            self._selector.unregister(1)
            self._waits_for_room = False
        if len(self._unsent) < _MOST_UNSENT:
            held_back, self._held_back = self._held_back, []
            for rank, stream in held_back:
                self._watch(stream, functools.partial(self._copy, rank, stream))

    # Events

    def _wakened(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._collect()

    def _collect(self) -> None:
        """Takes the statuses of all children that have ended."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            rank = next((r for r in self._ranks.values() if r.pid == ended.si_pid), None)
            if rank is None:  # left behind by a rank
                os.waitpid(ended.si_pid, 0)
            else:
                rank.collect()

    def _read_commands(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:  # stdin and stdout may be one socket
            return
        self._heard = time.monotonic()
        if not data:
            self._selector.unregister(0)
            self._leave()
        for line in self._lines.feed(data):
            self._obey(decoded(line))

    def _obey(self, message: Message) -> None:
        match message["do"]:
            case "hello":
                self._silence_s = float(message["silence_s"])
                self._send(self._ready())
            case "start":
                self._start(message)
            case "end":
                for key, rank in self._ranks.items():
                    if message["key"] in (None, key):
                        rank.end(message["grace_s"])
            case "listen":
                self._listen(message["token"])
            case "unlisten":
                self._unlisten()
                self._send({"is": "unlistened"})
            case "reach":
                found = reached(message["addresses"], message["port"], message["token"])
                self._send({"is": "reached", "addresses": found})

    def _ready(self) -> Message:
        return {
            "is": "ready",
            "version": version(),
            "ssh": os.environ.get("SSH_CONNECTION", ""),
        }

    def _start(self, message: Message) -> None:
        key = message["key"]
        # Another host than the launcher's knows some things better.
        environment = {**(os.environ if message["inherit"] else {}), **message["environment"]}
        try:
            rank = SupervisedRank(key, message["command"], environment, message["folder"])
        except CannotStart as error:
            self._send({"is": "exit", "key": key, "error": str(error)})
            return
        self._ranks[key] = rank
        for stream in rank.streams:
            self._watch(stream, functools.partial(self._copy, rank, stream))
        if self._leaving:
            rank.end(0.0)

    def _copy(self, rank: SupervisedRank, stream: int) -> None:
        if len(self._unsent) >= _MOST_UNSENT:
            self._selector.unregister(stream)
            self._held_back.append((rank, stream))
            return
        text = rank.read(stream)
        if text is None:
            self._close(rank, stream)
        else:
            self._pass_on(rank, rank.streams[stream], text)

    def _close(self, rank: SupervisedRank, stream: int) -> None:
        if (rank, stream) in self._held_back:
            self._held_back.remove((rank, stream))
        else:
            self._selector.unregister(stream)
        name = rank.streams[stream]
        self._pass_on(rank, name, rank.close(stream))

    def _pass_on(self, rank: SupervisedRank, stream: str, text: str) -> None:
        if text and not self._answerless:
            self._send({"is": "output", "key": rank.key, "stream": stream, "text": text})

    def _report(self, rank: SupervisedRank) -> None:
        for stream in list(rank.streams):  # held open by processes that it has left behind
            self._close(rank, stream)
        del self._ranks[rank.key]
        self._send({"is": "exit", "key": rank.key, "pid": rank.pid, "status": rank.status})

    def _listen(self, token: str) -> None:
        self._unlisten()
        self._listener = Listener(token)
        self._watch(self._listener.socket, self._listener.serve)
        addresses = interface_addresses()
        self._send({"is": "listening", "port": self._listener.port, "addresses": addresses})

    def _unlisten(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener.socket)
            self._listener.close()
            self._listener = None

    def _leave(self) -> None:
        if not self._leaving:
            self._leaving = True
            for rank in self._ranks.values():
                rank.end(_GRACE_S)


def main() -> int:
    if sys.stdin.isatty():
        print("tacorun starts this program; it is of no use by itself", file=sys.stderr)
        return 2
    Supervisor().run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
