"""A cable between two emulated hosts on which every frame takes a set time.

    with Fabric(hosts=2) as fabric, DelayedCable(fabric, seconds=0.005):
        ...                                     # the round trip takes 10 ms

A thread carries the frames. It wakes up about 0.1 ms late, and a busy machine makes that more: so
`round_trip()` measures what the cable really does.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import socket
import statistics
import threading
import time
from types import TracebackType

from fabric import Fabric

LONGEST_FRAME = 1 << 17  # super-packets are not cut


class DelayedCable:
    def __init__(self, fabric: Fabric, seconds: float) -> None:
        if fabric.hosts != 2:
            raise ValueError(f"a cable has two ends, not {fabric.hosts}")
        self._fabric, self._seconds = fabric, seconds
        self._ends = fabric.tap_cables()
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> DelayedCable:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        for end in self._ends:
            end.close()

    def _carry(self) -> None:
        flying: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        while True:
            wait = max(0.0, flying[0][0] - time.monotonic()) if flying else None
            readable = select.select([*self._ends, self._stop], [], [], wait)[0]
            if self._stop in readable:
                return
            for end in readable:
                frame = end.recv(LONGEST_FRAME)
                far = 1 - self._ends.index(end)
                due = time.monotonic() + self._seconds
                heapq.heappush(flying, (due, next(order), far, frame))
            while flying and flying[0][0] <= time.monotonic():
                _, _, far, frame = heapq.heappop(flying)
                self._ends[far].send(frame)

    def round_trip(self, samples: int = 9) -> float:
        """Seconds until a datagram is back, the median of some. Afterwards the hosts also know each
        other's hardware addresses."""
        with (
            self._fabric.socket(0, socket.SOCK_DGRAM) as near,
            self._fabric.socket(1, socket.SOCK_DGRAM) as far,
        ):
            near.settimeout(10)
            far.settimeout(10)
            times = []
            for _ in range(samples + 1):
                start = time.monotonic()
                near.sendto(b"there", far.getsockname())
                _, sender = far.recvfrom(16)
                far.sendto(b"back", sender)
                near.recv(16)
                times.append(time.monotonic() - start)
        return statistics.median(times[1:])  # the first one asked for hardware addresses
