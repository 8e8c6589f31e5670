"""Messages between the launcher and others: one JSON object a line.

Text of ranks may hold any bytes: what is no UTF-8 travels as the lone surrogates that Python's
"surrogateescape" makes of it, which JSON can say. Functions without a state: any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

# The longest line that a reader takes: a start message holds a whole environment, which the kernel
# bounds by a quarter of the stack's limit (2 MiB as a rule).
LONGEST = 8 << 20


def encoded(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decoded(line: bytes) -> Message:
    """The message that a line holds.

    Raises:
        ValueError: it holds none.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a message is an object, not {line[:80]!r}")
    return message


def as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Lines:
    """Cuts a stream into lines."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._rest = b""
        self._longest = longest

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are whole now, without their ends.

        Raises:
            ValueError: a line is longer than any message.
        """
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._longest:
            raise ValueError(f"a line of more than {self._longest} bytes")
        yield from whole
