"""A rank of an elastic job, as it speaks with its launcher (meeting.py). Needs no torch.

``enter()`` is what an ``init()`` begins with, the first and every later one: it waits until the
launcher has put a world together of which this process is a part, and sets the variables from
which ``taco_torch.horovod`` learns its rank. One thread at a time may call; a forked child has no
launcher.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket

from taco_torch.launch.meeting import Conversation, proof

# Changes of hosts, in Horovod's numbers.
REMOVED, ADDED = 1, 2


class LauncherLost(RuntimeError):
    """tacorun does not answer any more."""


class JobFinished(SystemExit):
    """Another rank has come to the end of its program, and no world follows: so does this one."""


class _Member:
    """The connection of a process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.updates = 0
        self.lost = ""
        address, port = os.environ["TACORUN_MEETING"].split()
        key, worker = os.environ["TACORUN_KEY"], int(os.environ["TACORUN_WORKER"])
        connection = socket.create_connection((address, int(port)), timeout=30)
        self.conversation = Conversation(connection)
        self.conversation.receive_line()  # the token, for those that look for addresses
        theirs = self.conversation.receive()["nonce"]
        ours = secrets.token_hex(16)
        nonces = f"{theirs} {ours} {worker}"
        self.conversation.send(
            {"nonce": ours, "worker": worker, "proof": proof(key, "rank", nonces)}
        )
        said = str(self.conversation.receive()["proof"])
        if not hmac.compare_digest(said, proof(key, "launcher", nonces)):
            raise LauncherLost(f"who answers at {address}, port {port}, is not this job's tacorun")
        connection.settimeout(None)


_member: _Member | None = None


def present() -> bool:
    """Whether this process was started by tacorun as a rank of an elastic job."""
    return os.environ.get("HOROVOD_ELASTIC") == "1" and "TACORUN_MEETING" in os.environ


def _connected() -> _Member:
    global _member
    if _member is None or _member.pid != os.getpid():
        _member = _Member()
    return _member


def enter() -> None:
    """Waits for a world, and sets RANK, HOROVOD_RANK, MASTER_PORT and their like in os.environ.

    Raises:
        SystemExit: the launcher needs this rank no more, because its host was taken away.
        JobFinished: or because the job has ended well.
        LauncherLost: tacorun has gone.
    """
    try:
        member = _connected()
        member.conversation.send({"do": "enter"})
        while (message := member.conversation.receive())["is"] in ("updated", "broken"):
            pass  # what has changed is part of the world that comes
    except (OSError, ValueError) as error:
        raise LauncherLost(f"tacorun has gone: {error}") from error
    member.updates, member.lost = 0, ""
    if message["is"] == "leave":
        raise JobFinished(0) if message.get("finished") else SystemExit(0)
    os.environ.update(message["variables"])


def has_newcomers() -> bool:
    """Whether the world that was entered last has ranks that were in none before."""
    return os.environ.get("TACORUN_HAS_NEWCOMERS", "0") == "1"


def updates() -> int:
    """Whatever the launcher has told of hosts since the world was entered: 0, or REMOVED and ADDED
    together. Does not wait.

    Raises:
        LauncherLost: tacorun has gone.
    """
    return _heard().updates


def lost() -> str:
    """Why the world that was entered last is not whole any more; "": nothing is known. Does not
    wait.

    Raises:
        LauncherLost: tacorun has gone.
    """
    return _heard().lost


def _heard() -> _Member:
    """Takes what the launcher has sent."""
    member = _connected()
    try:
        while (message := member.conversation.receive_present()) is not None:
            if message["is"] == "updated":
                member.updates |= int(message["what"])
            elif message["is"] == "broken":
                member.lost = member.lost or str(message["text"])
    except (OSError, ValueError) as error:
        raise LauncherLost(f"tacorun has gone: {error}") from error
    return member
