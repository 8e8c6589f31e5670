"""Which addresses of a host other hosts can reach: one listens, the others try.

Two hosts may both have an address of the same number (a bridge for containers, say), and behind a
firewall an address may answer nobody. So nothing is concluded from numbers: who connects must be
told the token of the very listener that it looks for.

Functions and a Listener belong to whoever made them; no threads.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

_SIOCGIFCONF = 0x8912
_RECORD = 40  # bytes of one struct ifreq on 64-bit Linux: 16 of name, then the address
_TRY_S = 2.0
_LINGER_S = 0.3  # for others, once one address was reached


def interface_addresses() -> list[tuple[str, str]]:
    """(interface, address) of this host, IPv4 first, loopback last; link-local IPv6 left out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        room = array.array("B", bytes(_RECORD * 512))
        request = struct.pack("iL", len(room), room.buffer_info()[0])
        filled = struct.unpack("iL", fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, request))[0]
    found = []
    data = room.tobytes()
    for at in range(0, filled, _RECORD):
        name = data[at : at + 16].split(b"\0")[0].decode()
        found.append((name.split(":")[0], socket.inet_ntoa(data[at + 20 : at + 24])))
    with contextlib.suppress(OSError):  # no file: no IPv6 here
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if scope != "20":
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
                found.append((name, address))
    return sorted(found, key=lambda each: each[1].startswith("127.") or each[1] == "::1")


def listening(port: int = 0) -> socket.socket:
    """A socket that hears connections to any address of this host, IPv4 and, if any, IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # compiled in, but switched off
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
    return socket.create_server(("", port), backlog=128)


class Listener:
    """Says its token to whoever connects; ``serve()`` when its socket is readable."""

    def __init__(self, token: str) -> None:
        self.socket = listening()
        self.socket.setblocking(False)
        self.port = int(self.socket.getsockname()[1])
        self._token = token.encode() + b"\n"

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # who connected has gone again
            connection, _ = self.socket.accept()
            with connection:
                connection.send(self._token)

    def close(self) -> None:
        self.socket.close()


def reached(addresses: Sequence[str], port: int, token: str) -> list[str]:
    """Those addresses at whose port somebody says the token, in the order given. Takes two seconds
    at most, and little more than the first takes where one answers."""
    end = time.monotonic() + _TRY_S
    expected = token.encode() + b"\n"
    answered: set[str] = set()
    heard: dict[str, bytes] = {}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for address in dict.fromkeys(addresses):
            connection = _begin(address, port)
            if connection is not None:
                stack.enter_context(connection)
                selector.register(connection, selectors.EVENT_READ, address)
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                assert isinstance(key.fileobj, socket.socket)
                try:
                    data = key.fileobj.recv(256)
                except OSError:
                    data = b""
                heard[key.data] = heard.get(key.data, b"") + data
                found = heard[key.data] == expected
                if found:
                    answered.add(key.data)
                    end = min(end, time.monotonic() + _LINGER_S)
                if found or not data or not expected.startswith(heard[key.data]):
                    selector.unregister(key.fileobj)
    return [address for address in dict.fromkeys(addresses) if address in answered]


def _begin(address: str, port: int) -> socket.socket | None:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM
        )[0]
        connection = socket.socket(family, kind, protocol)
    except OSError:
        return None
    connection.setblocking(False)
    try:
        connection.connect(target)
    except BlockingIOError:  # under way
        pass
    except OSError:
        connection.close()
        return None
    return connection
