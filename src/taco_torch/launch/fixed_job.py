"""A job whose ranks are given: all start together, and the first that fails ends all.

Called by the command's thread.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from taco_torch.launch.hosts import Slot
from taco_torch.launch.messages import Message
from taco_torch.launch.session import Running, Session
from taco_torch.launch.variables import as_strings, of_a_slot


@dataclass(frozen=True)
class Failure:
    """How a rank ended, when not well; ``status`` is the launcher's own. ``lines`` are its last
    ones, None where there was no rank."""

    text: str
    status: int
    lines: list[str] | None = None

    def __str__(self) -> str:
        if self.lines is None:
            return self.text
        last = "".join(f"\n  {line}" for line in self.lines)
        return self.text + (f". Its last lines:{last}" if last else ", and had written nothing")


def failure_of(session: Session, running: Running, message: Message) -> Failure | None:
    """None for a rank that ended well."""
    where = f"rank {running.label} on {running.link.host}"
    if "error" in message:
        return Failure(f"{where} was not started: {message['error']}", 127)
    status = int(message["status"])
    if status == 0:
        return None
    where += f" (pid {message['pid']})"
    if status > 0:
        return Failure(
            f"{where} ended with exit status {status}",
            status,
            session.output.tail(running.label),
        )
    try:
        name = f"{-status} ({signal.Signals(-status).name})"
    except ValueError:  # a real-time signal
        name = str(-status)
    tail = session.output.tail(running.label)
    return Failure(f"{where} was killed by signal {name}", 128 - status, tail)


def run(session: Session, slots: Sequence[Slot], start_timeout_s: float) -> Failure | None:
    """Runs the job to its end; the first failure, after which the other ranks still live.

    Raises:
        LaunchError: it could not be started, or a host was lost.
    """
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    session.connect(hosts, start_timeout_s)
    address, port = session.meeting_point(hosts[0], hosts)
    for slot in slots:
        session.start(slot.host, slot.rank, as_strings(of_a_slot(slot, address, port)))
    while session.running:
        event = session.next()
        assert event is not None
        if event.message["is"] == "gone":
            return Failure(event.message["text"], 1)
        if event.message["is"] == "exit":
            running = session.running.pop(event.message["key"])
            failure = failure_of(session, running, event.message)
            if failure is not None:
                return failure
    return None
