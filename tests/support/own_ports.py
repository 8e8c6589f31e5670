"""Ports for a test that has to name them before a program opens them.

A port that is found free and let go may be anybody's a moment later. These are below the ports that
the kernel gives to programs which ask for any, and each range of them is one test's at a time: it
holds its range by a name that only one socket of the machine can have.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

RANGE = 100  # ports of a test
_FIRST, _END = 10_000, 20_000


@contextlib.contextmanager
def own_ports() -> Iterator[int]:
    """The first of RANGE ports, UDP and TCP, that are this test's until the context ends."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert given >= _END, (
        f"the kernel gives ports from {given} on to anybody: none are a test's own"
    )
    with contextlib.ExitStack() as stack:
        for first in range(_FIRST, _END, RANGE):
            name = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                name.bind(f"\0taco_torch test ports {first}")
            except OSError:  # another test's
                continue
            if all(map(_is_free, range(first, first + RANGE))):  # of services of this machine
                yield first
                return
    raise AssertionError("no ports are free")


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET6, kind) as probe:
            try:
                probe.bind(("::", port))
            except OSError:
                return False
    return True
