"""The output of ranks: prefixed lines on the launcher's own streams, files, and each one's last
lines.

Belongs to the session, whose thread calls it.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import IO

from taco_torch.launch.errors import LaunchError
from taco_torch.launch.messages import as_bytes

_TAIL = 20
_LINE = re.compile(r"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+\Z")


class Output:
    """``[1,RANK]<stdout>:LINE``, as mpirun --tag-output and horovodrun print it. Progress bars,
    which end a line by a carriage return, keep it."""

    def __init__(self, folder: str | None, with_time: bool, ranks: int) -> None:
        self._with_time = with_time
        self._digits = len(str(max(ranks - 1, 0)))
        self._folder = Path(folder) if folder else None
        self._files: dict[tuple[int, str], IO[bytes]] = {}
        self._tails: dict[int, deque[str]] = {}
        self._unread = False  # whoever read it has gone
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LaunchError(f"--output-filename {folder}: {error.strerror}") from None

    def write(self, rank: int, stream: str, text: str) -> None:
        """Lines of a rank, the last of which may lack its end.

        Raises:
            BrokenPipeError: whoever read them has gone. Once: later ones are kept for files only.
        """
        self._save(rank, stream, text)
        tail = self._tails.setdefault(rank, deque(maxlen=_TAIL))
        time = datetime.now().strftime("%a %b %d %H:%M:%S %Y") if self._with_time else ""
        prefix = f"{time}[1,{rank}]<{stream}>:"
        pieces = []
        for line in _LINE.findall(text):
            whole = line if line.endswith(("\r", "\n")) else line + "\n"
            pieces.append(prefix + whole)
            tail.append(prefix + whole.rstrip("\r\n"))
        data = as_bytes("".join(pieces))
        try:
            while data and not self._unread:
                data = data[os.write(1 if stream == "stdout" else 2, data) :]
        except BrokenPipeError:
            self._unread = True
            raise

    def tail(self, rank: int) -> list[str]:
        """The last lines of a rank, as they were printed."""
        return [as_bytes(line).decode("utf-8", "replace") for line in self._tails.get(rank, [])]

    def forget(self, rank: int) -> None:
        """Another process has this rank now."""
        self._tails.pop(rank, None)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _save(self, rank: int, stream: str, text: str) -> None:
        if self._folder is None:
            return
        if (rank, stream) not in self._files:
            folder = self._folder / f"rank.{rank:0{self._digits}d}"
            folder.mkdir(exist_ok=True)
            self._files[rank, stream] = open(folder / stream, "wb", buffering=0)  # noqa: SIM115
        self._files[rank, stream].write(as_bytes(text))


def say(text: str) -> None:
    """A line of the launcher's own."""
    print(f"tacorun: {text}", file=sys.stderr, flush=True)
