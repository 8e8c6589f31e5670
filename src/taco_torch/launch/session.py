"""The hosts of a job and the ranks on them: one queue of events, one thread that takes them.

Signals are events too. Whoever runs the job (fixed_job.py, elastic_job.py) calls from the main
thread; close() leaves nothing behind, on no host.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from taco_torch.launch.errors import HostError, HostGone, LaunchError
from taco_torch.launch.hosts import is_local
from taco_torch.launch.link import Link
from taco_torch.launch.messages import Message
from taco_torch.launch.output import Output, say
from taco_torch.launch.reach import interface_addresses
from taco_torch.launch.ssh import Ssh
from taco_torch.launch.variables import for_another_host
from taco_torch.launch.version import version

GRACE_S = 2.0  # from SIGTERM to SIGKILL
_LEAVING_S = 3.0  # and from there until a supervisor itself is killed
_ASKED_S = 15.0


class Interrupted(LaunchError):
    """A signal has come for the launcher."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal.Signals(number).name}: the job was ended", 128 + number)


@dataclass
class Event:
    """``link`` is None for what comes from no host; ``message`` says what it "is"."""

    link: Link | None
    message: Message


@dataclass
class Running:
    """A rank that was started. ``label`` is the number under which its output appears."""

    key: int
    link: Link
    label: int


class Session:
    """``command`` is what all ranks run, ``environment`` what all get."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ssh: Ssh,
        output: Output,
        interfaces: Sequence[str],
        verbose: bool,
    ) -> None:
        self.links: dict[str, Link] = {}
        self.running: dict[int, Running] = {}
        self.output = output
        self.events: SimpleQueue[Any] = SimpleQueue()
        self._command = list(command)
        self._environment = dict(environment)
        self._ssh = ssh
        self._interfaces = set(interfaces)
        self._verbose = verbose
        self._deferred: deque[Event] = deque()
        self._keys = 0
        self._reached: dict[tuple[str, str], list[str]] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as by nohup
                signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        # The second one is the kernel's: it ends the launcher, and so all ranks, whatever hangs.
        signal.signal(number, signal.SIG_DFL)
        self.events.put((None, {"is": "interrupted", "number": number}))

    def verbosely(self, text: str) -> None:
        if self._verbose:
            say(text)

    # Hosts

    def begin(self, host: str) -> Link:
        """Starts a supervisor on a host; its "ready" or "gone" comes as an event."""
        ssh = None if is_local(host) else self._ssh
        link = Link(host, ssh, os.environ, self.events)
        self.links[host] = link
        self.verbosely(f"{host}: {' '.join(link.line)}")
        return link

    def connect(self, hosts: Sequence[str], timeout_s: float) -> None:
        """Supervisors on all of these hosts.

        Raises:
            LaunchError: a host cannot be reached, or has no taco_torch or another one.
        """
        end = time.monotonic() + timeout_s
        for host in hosts:
            self.begin(host)
        while waiting := [link for link in self.links.values() if link.ready is None]:
            event = self.next(end - time.monotonic())
            if event is None:
                names = ", ".join(link.host for link in waiting)
                raise LaunchError(
                    f"{names}: no supervisor answered within {timeout_s:g} s (--start-timeout)"
                    + "".join(f"\n  {each.host}: {e}" for each in waiting for e in each.errors)
                )
            if event.message["is"] == "gone":
                raise LaunchError(event.message["text"])

    def _greet(self, link: Link, message: Message) -> Message:
        """The message, or the end of a host that has another version."""
        if message["version"] == version():
            link.ready = message
            return message
        link.close()
        del self.links[link.host]
        text = f"{link.host} has taco_torch {message['version']}, this host {version()}: install "
        return {"is": "gone", "text": text + "the same on both"}

    def own_addresses(self, link: Link) -> list[str]:
        """Addresses of this host by which the ranks of another may find it."""
        found = interface_addresses()
        if self._interfaces:
            return [address for name, address in found if name in self._interfaces]
        return _likeliest_first(link, 0, found)

    def addresses(self, link: Link, reported: Sequence[Sequence[str]]) -> list[str]:
        """Addresses of a host by which others may find it, the likeliest first."""
        if self._interfaces:
            found = [address for name, address in reported if name in self._interfaces]
            if not found:
                there = ", ".join(sorted({name for name, _ in reported}))
                raise HostError(
                    link.host,
                    f"{link.host} has no address at {', '.join(sorted(self._interfaces))} "
                    f"(--network-interfaces); it has {there}",
                )
            return found
        return _likeliest_first(link, 2, reported)

    def _link(self, host: str) -> Link:
        if host not in self.links:
            raise HostGone(f"the connection to {host} has ended")
        return self.links[host]

    def meeting_point(self, host: str, others: Sequence[str]) -> tuple[str, int]:
        """An address of a host that the others reach, and a port that is free there.

        Raises:
            HostError: a host reaches none.
            HostGone: a host has ended in the meantime.
        """
        link, token = self._link(host), secrets.token_hex(8)
        heard = self.ask(link, {"do": "listen", "token": token}, "listening")
        remaining = self.addresses(link, heard["addresses"])
        tried = list(remaining)
        for other in others:
            if other == host:
                continue
            question = {"do": "reach", "addresses": tried, "port": heard["port"], "token": token}
            known = self._reached.get((host, other))
            if known is None:
                known = self.ask(self._link(other), question, "reached")["addresses"]
                self._reached[host, other] = known
            remaining = [address for address in remaining if address in known]
            if not remaining:
                raise HostError(
                    other,
                    f"{other} reaches no address of {host} that the other hosts reach, of "
                    f"{', '.join(tried)}: see to routes and firewalls (TCP, all ports from 1024 "
                    "on), or name the network by --network-interfaces",
                )
        self.ask(link, {"do": "unlisten"}, "unlistened")  # rank 0 is to have the port
        address = remaining[0] if any(other != host for other in others) else "127.0.0.1"
        self.verbosely(f"the ranks meet at {address}, port {heard['port']}")
        return address, int(heard["port"])

    def ask(self, link: Link, question: Message, answer: str) -> Message:
        """The supervisor's answer; other events wait.

        Raises:
            HostGone: it has ended.
            HostError: it does not answer.
        """
        link.send(question)
        end = time.monotonic() + _ASKED_S
        kept: list[Event] = []
        try:
            while True:
                event = self._fresh(end - time.monotonic())
                if event is None:
                    text = f"{link.host} did not answer within {_ASKED_S:g} s"
                    raise HostError(link.host, text)
                if event.link is link and event.message["is"] == answer:
                    return event.message
                kept.append(event)
                if event.link is link and event.message["is"] == "gone":
                    raise HostGone(event.message["text"])
        finally:
            self._deferred.extend(kept)

    # Ranks

    def start(self, host: str, label: int, variables: Mapping[str, str]) -> Running:
        """Starts a rank; its "exit" comes as an event, with ``key``."""
        link = self.links[host]
        self._keys += 1
        running = self.running[self._keys] = Running(self._keys, link, label)
        common = self._environment if link.is_local else for_another_host(self._environment)
        own = {"HOROVOD_HOSTNAME": host, "TACORUN_WORKER": str(running.key), **variables}
        environment = {"PYTHONUNBUFFERED": "1", **common, **own}
        link.send(
            {
                "do": "start",
                "key": running.key,
                "command": self._command,
                "environment": environment,
                "inherit": not link.is_local,
                "folder": os.getcwd(),
            }
        )
        return running

    def end(self, running: Running, grace_s: float = GRACE_S) -> None:
        running.link.send({"do": "end", "key": running.key, "grace_s": grace_s})

    # Events

    def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event, None after so many seconds. Output is written on the way."""
        if self._deferred:
            return self._deferred.popleft()
        return self._fresh(timeout_s)

    def has_more(self) -> bool:
        """Whether there are events that came while a supervisor was asked something."""
        return bool(self._deferred)

    def _fresh(self, timeout_s: float | None) -> Event | None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return None
            try:
                link, message = self.events.get(timeout=left)
            except Empty:
                continue
            if link is None and message["is"] == "interrupted":
                raise Interrupted(message["number"])
            if link is not None:
                link.taken()
            event = self._digest(Event(link, message))
            if event is not None:
                return event

    def _digest(self, event: Event) -> Event | None:
        """The event, unless it concerns the session alone."""
        link, message = event.link, event.message
        if message["is"] == "output":
            assert link is not None
            running = self.running.get(message["key"])
            if running is not None:
                self.output.write(running.label, message["stream"], message["text"])
            return None
        if link is None:
            return event
        if self.links.get(link.host) is not link:  # the job has given it up
            return None
        if message["is"] == "ready":
            event.message = message = self._greet(link, message)
        if message["is"] == "gone":
            self.links.pop(link.host, None)
            self._reached = {
                pair: at for pair, at in self._reached.items() if link.host not in pair
            }
        return event

    def close(self) -> None:
        """Ends all ranks and supervisors: SIGTERM, SIGKILL after two seconds. Their last output is
        written."""
        for link in self.links.values():
            link.send({"do": "end", "key": None, "grace_s": GRACE_S})
            link.close()
        end = time.monotonic() + GRACE_S + _LEAVING_S
        self._wait_for_links(lambda: end - time.monotonic())
        for link in self.links.values():
            say(f"{link.host} did not end its ranks in time: the connection is cut")
            link.kill()
        self.output.close()

    def _wait_for_links(self, left: Callable[[], float]) -> None:
        while self.links and left() > 0:
            try:
                if self.next(left()) is None:
                    return
            except Interrupted:
                continue
            except BrokenPipeError:  # whoever read the output has gone
                continue


def _likeliest_first(link: Link, place: int, found: Sequence[Sequence[str]]) -> list[str]:
    """Addresses, before which comes the one at that place of SSH_CONNECTION, by which this launcher
    has come to the host: "client port server port"."""
    assert link.ready is not None
    words = str(link.ready["ssh"]).split()
    first = [words[place]] if len(words) == 4 else []
    return list(dict.fromkeys([*first, *(address for _, address in found)]))
