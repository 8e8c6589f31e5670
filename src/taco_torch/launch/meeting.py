"""Where the ranks of an elastic job meet: the launcher's server, which tells each its place.

A rank connects when it first asks for a world, and stays connected. Both sides prove that they
know the job's key, which is in the environment of the ranks alone. What then goes over the line,
ranks and a port, is no secret.

The server is made by elastic_job.py, whose thread sends; a thread for each connection reads, and
puts what comes among the session's events.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import socket
import threading
from queue import SimpleQueue
from typing import Any

from taco_torch.launch.messages import Lines, Message, decoded, encoded
from taco_torch.launch.reach import listening

_GREETING_S = 10.0
_LONGEST = 1 << 16
_STRANGERS = 64  # connections at once that have not proved anything yet


def proof(key: str, role: str, nonces: str) -> str:
    return hmac.new(key.encode(), f"{role} {nonces}".encode(), hashlib.sha256).hexdigest()


class Conversation:
    """Messages over a connected socket, one thread at each end of it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lines = Lines(_LONGEST)
        self._received: list[bytes] = []

    def send(self, message: Message) -> None:
        self.socket.sendall(encoded(message))

    def receive_line(self) -> bytes:
        """
        Raises:
            ConnectionError: the other side has gone.
        """
        while not self._received:
            data = self.socket.recv(4096)
            if not data:
                raise ConnectionError("the other side has closed the connection")
            self._received.extend(self._lines.feed(data))
        return self._received.pop(0)

    def receive(self) -> Message:
        return decoded(self.receive_line())

    def receive_present(self) -> Message | None:
        """A message that is here already."""
        if not self._received:
            self.socket.setblocking(False)
            try:
                data = self.socket.recv(4096)
            except BlockingIOError:
                return None
            finally:
                self.socket.setblocking(True)
            if not data:
                raise ConnectionError("the launcher has closed the connection")
            self._received.extend(self._lines.feed(data))
        return decoded(self._received.pop(0)) if self._received else None


class Meeting:
    """Listens at once. Its events: {"is": "entered", "worker": KEY}."""

    def __init__(self, events: SimpleQueue[Any]) -> None:
        self.key = secrets.token_hex(32)
        self.token = secrets.token_hex(8)  # says to whom this port belongs; no secret
        self._events = events
        self._socket = listening()
        self.port = int(self._socket.getsockname()[1])
        self._conversations: dict[int, Conversation] = {}
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        threading.Thread(target=self._accept, name="tacorun meeting", daemon=True).start()

    def send(self, worker: int, message: Message) -> None:
        """To a rank that has entered; one that has gone hears nothing, and its end is an event of
        its supervisor."""
        conversation = self._conversations.get(worker)
        if conversation is not None:
            with contextlib.suppress(OSError):
                conversation.send(message)

    def close(self) -> None:
        # Wakes the thread that accepts, which closing alone does not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for conversation in list(self._conversations.values()):
            conversation.socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="tacorun rank", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        conversation = Conversation(connection)
        try:
            worker = self._greet(conversation)
        except (OSError, ValueError, KeyError, TypeError):  # a stranger, or one that has gone
            connection.close()
            return
        finally:
            self._strangers.release()
        self._conversations[worker] = conversation
        with contextlib.suppress(OSError, ValueError), connection:
            while True:
                message = conversation.receive()
                if message.get("do") == "enter":
                    self._events.put((None, {"is": "entered", "worker": worker}))

    def _greet(self, conversation: Conversation) -> int:
        conversation.socket.settimeout(_GREETING_S)
        conversation.socket.sendall(self.token.encode() + b"\n")
        ours = secrets.token_hex(16)
        conversation.send({"nonce": ours})
        answer = conversation.receive()
        nonces = f"{ours} {answer['nonce']} {int(answer['worker'])}"
        if not hmac.compare_digest(str(answer["proof"]), proof(self.key, "rank", nonces)):
            raise ValueError("who does not know the key is no rank of this job")
        conversation.send({"proof": proof(self.key, "launcher", nonces)})
        conversation.socket.settimeout(None)
        return int(answer["worker"])
