"""Hosts as users name them, and which rank runs on which.

Functions without a state: any thread may call them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from taco_torch.launch.errors import LaunchError

# A name or an IPv4 address, or an IPv6 address in brackets; then, perhaps, the slots.
_HOST = re.compile(r"(?P<name>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(?::(?P<slots>[^:]*))?")


@dataclass(frozen=True)
class Host:
    """A host and how many ranks may run there."""

    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """The place of one rank. ``cross_rank`` counts the hosts that have a rank with this one's
    ``local_rank``, as Horovod counts them."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def _slots(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or not 1 <= int(text) <= 100_000:
        raise LaunchError(f"{where}: slots must be a number from 1 on, not {text!r}")
    return int(text)


def host_of(text: str, where: str, slots: int | None = None) -> Host:
    """The host that "name", "name:slots" or "[IPv6]:slots" says; ``slots`` where it says none."""
    match = _HOST.fullmatch(text)
    if not match:
        raise LaunchError(
            f"{where}: {text!r} names no host. Write NAME or NAME:SLOTS, as node1:4; an IPv6 "
            "address stands in brackets, as [fd00::1]:4"
        )
    said = match["slots"]
    count = _slots(said, f"{where}: {text!r}") if said is not None else slots
    return Host(match["name"].strip("[]"), 1 if count is None else count)


def joined(hosts: Iterable[Host]) -> list[Host]:
    """Every host once, where it came first, with the sum of its slots, as mpirun has it."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]


def parse_hosts(text: str) -> list[Host]:
    """The value of -H: "h1:2,h2:2"."""
    parts = [part.strip() for part in text.split(",")]
    return joined(host_of(part, f"-H {text}") for part in parts)


def parse_line(line: str, where: str, slots: int | None = None) -> Host | None:
    """The host of a line "name slots=2", "name:2" or "name"; None where there is but a comment."""
    words = line.split("#")[0].split()
    if not words:
        return None
    host = host_of(words[0], where, slots)
    count = host.slots
    for word in words[1:]:
        key, found, value = word.partition("=")
        if not found or key not in ("slots", "max_slots", "max-slots"):
            raise LaunchError(f"{where}: {word!r} is unknown; a line is NAME slots=NUMBER")
        number = _slots(value, where)
        count = number if key == "slots" else count
    return Host(host.name, count)


def parse_hostfile(path: str) -> list[Host]:
    """The hosts of a file, a line each: "name slots=2", as horovodrun and mpirun read it."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"--hostfile {path} cannot be read: {error}") from None
    found = [parse_line(line, f"{path}, line {at}") for at, line in enumerate(lines, 1)]
    hosts = joined(host for host in found if host)
    if not hosts:
        raise LaunchError(f"--hostfile {path} names no host: write a line NAME slots=NUMBER")
    return hosts


def assign(hosts: Sequence[Host], ranks: int) -> list[Slot]:
    """Ranks 0 .. ranks-1 host by host, as many on each as it has slots for."""
    total = sum(host.slots for host in hosts)
    if ranks > total:
        names = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise LaunchError(
            f"-np {ranks}: {names} have {total} slots. Give the hosts more (-H NAME:SLOTS), or ask "
            f"for at most {total} ranks"
        )
    counts: dict[str, int] = {}
    left = ranks
    for host in hosts:
        counts[host.name] = min(host.slots, left)
        left -= counts[host.name]
    return slots_of({name: count for name, count in counts.items() if count})


def slots_of(counts: dict[str, int]) -> list[Slot]:
    """The places of ranks of which every host has so many."""
    slots: list[Slot] = []
    size = sum(counts.values())
    for name, local_size in counts.items():
        for local_rank in range(local_size):
            across = [other for other, count in counts.items() if count > local_rank]
            slots.append(
                Slot(
                    host=name,
                    rank=len(slots),
                    size=size,
                    local_rank=local_rank,
                    local_size=local_size,
                    cross_rank=across.index(name),
                    cross_size=len(across),
                )
            )
    return slots


def is_local(name: str) -> bool:
    """Whether a host is this one: its own name, or one whose address this host has."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:  # perhaps a name that only ssh knows
        return False
    return any(_is_own(family, address[:2]) for family, _, _, _, address in found)


def _is_own(family: int, address: Sequence[object]) -> bool:
    # The kernel binds a socket to addresses of its own only.
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0))
    except OSError:
        return False
    return True
