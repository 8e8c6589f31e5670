"""Attacks of a stranger to a job from outside, at some rate:

    connects NAME    connects to a rank's socket on this host and leaves, as user nobody (root)
    icmp PORT        messages of the network's ("fragmentation needed", "port unreachable") about
                     packets from that port to ports that are guessed (root)

benchmarks/security.py starts it. Ends with its input, and prints how many there were.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Callable

NOBODY = 65534  # a user, and a group
ATTEMPTS = 20  # between two looks at the clock
PORT_UNREACHABLE, FRAGMENTATION_NEEDED = 3, 4  # codes of ICMP's type 3
LOOPBACK = socket.inet_aton("127.0.0.1")


def connects(name: str) -> Callable[[], None]:
    address = b"\0" + name.encode()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)

    def once() -> None:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with caller, contextlib.suppress(OSError):  # the queue is full
            caller.connect(address)

    return once


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def message_about(port: int, other: int, code: int) -> bytes:
    quoted = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 1500, 1, 0, 64, socket.IPPROTO_UDP, 0, LOOPBACK, LOOPBACK
    )
    quoted += struct.pack("!HHHH", port, other, 1480, 0) + bytes(32)
    rest = struct.pack("!HH", 0, 576 if code == FRAGMENTATION_NEEDED else 0)
    head = struct.pack("!BBH", 3, code, 0)
    return struct.pack("!BBH", 3, code, checksum(head + rest + quoted)) + rest + quoted


def icmp(port: int) -> Callable[[], None]:
    source = random.Random(1)
    messages = [
        message_about(port, source.randrange(1024, 65536), code)
        for code in (PORT_UNREACHABLE, FRAGMENTATION_NEEDED)
        for _ in range(500)
    ]
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)

    def once() -> None:
        with contextlib.suppress(OSError):
            out.sendto(source.choice(messages), ("127.0.0.1", 0))

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=("connects", "icmp"))
    parser.add_argument("target")
    parser.add_argument("rate", type=float, help="a second")
    arguments = parser.parse_args()
    once = (
        connects(arguments.target) if arguments.kind == "connects" else icmp(int(arguments.target))
    )
    done, start = 0, time.monotonic()
    while True:
        early = done / arguments.rate - (time.monotonic() - start)
        if select.select([sys.stdin], [], [], max(early, 0))[0]:
            break
        for _ in range(ATTEMPTS):
            once()
        done += ATTEMPTS
    print(done / (time.monotonic() - start))


if __name__ == "__main__":
    main()
