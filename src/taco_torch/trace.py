"""Shows what has happened and what is happening: timeline, flight recorder, hang dump."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from taco_torch._extension import _C


@contextmanager
def timeline(path: str | PathLike[str]) -> Iterator[None]:
    """Records the operations of the block and writes a trace for Chrome or https://ui.perfetto.dev.

    Give each rank a ``path`` of its own. Each operation shows its bytes, its algorithm and the
    peers that it waited for; beyond 262,144 events the oldest are dropped::

        with taco_torch.timeline(f"trace-{rank}.json"):
            train_step()
    """
    _C.enable_timeline(True)
    try:
        yield
    finally:
        _C.enable_timeline(False)
        with open(path, "w") as file:
            file.write(_C.chrome_trace_json())


def flight_recorder() -> dict[str, Any]:
    """The last 512 finished operations of this process, oldest first. Always recorded.

    ``{"version": ..., "entries": [{"group", "sequence", "kind", "bytes", ...}, ...]}``
    """
    recorded: dict[str, Any] = json.loads(_C.flight_recorder_json())
    return recorded


def dump() -> str:
    """Says what every group of this process is doing now (operation, step, peer, bytes done), and
    shows each path to a peer over the network: addresses, state, round trip, losses.

    The same text goes to stderr on SIGUSR2, unless the program handles that signal itself.
    """
    return _C.dump()
