"""Where ranks of an elastic job may run: the hosts that there are, less what has failed there.

Belongs to the job (elastic_job.py). Time is passed in: no clock here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taco_torch.launch.hosts import Host


@dataclass
class _Hole:
    """Slots of a host that are not used, until a time; None is for ever."""

    slots: int
    until: float | None


class ElasticHosts:
    """A rank that fails takes its slot with it, a host that is lost all of its slots: for ever, or,
    where ``cooldown`` says from how many seconds to how many, for a time that doubles with each
    failure of the host."""

    def __init__(self, cooldown: tuple[int, int] | None) -> None:
        self._cooldown = cooldown
        self._hosts: dict[str, int] = {}
        self._holes: dict[str, list[_Hole]] = {}
        self._failures: dict[str, int] = {}

    def replace(self, hosts: Sequence[Host]) -> tuple[bool, bool]:
        """These are all now; whether slots were taken away, and whether some came. A host that has
        gone and comes back is a new one."""
        new = {host.name: host.slots for host in hosts}
        names = {*new, *self._hosts}
        changes = [new.get(name, 0) - self._hosts.get(name, 0) for name in names]
        for name in set(self._hosts) - set(new):
            self._holes.pop(name, None)
            self._failures.pop(name, None)
        self._hosts = new
        return any(change < 0 for change in changes), any(change > 0 for change in changes)

    def names(self) -> list[str]:
        return list(self._hosts)

    def slots(self, name: str, now: float) -> int:
        """How many ranks may run there at this time."""
        holes = self._holes.get(name, [])
        holes[:] = [hole for hole in holes if hole.until is None or hole.until > now]
        return max(0, self._hosts.get(name, 0) - sum(hole.slots for hole in holes))

    def total(self, now: float) -> int:
        return sum(self.slots(name, now) for name in self._hosts)

    def failed(self, name: str, now: float) -> float | None:
        """A rank has failed there; for how many seconds its slot is not used, None for ever."""
        return self._dig(name, 1, now)

    def lost(self, name: str, now: float) -> float | None:
        """As failed(), for all slots of a host."""
        return self._dig(name, self._hosts.get(name, 0), now)

    def _dig(self, name: str, slots: int, now: float) -> float | None:
        self._failures[name] = self._failures.get(name, 0) + 1
        wait = None
        if self._cooldown is not None:
            least, most = self._cooldown
            wait = float(min(most, least * 2 ** min(self._failures[name] - 1, 30)))
        hole = _Hole(slots, None if wait is None else now + wait)
        self._holes.setdefault(name, []).append(hole)
        return wait

    def next_change(self) -> float | None:
        """When the next slot comes back."""
        times = [hole.until for holes in self._holes.values() for hole in holes]
        return min((each for each in times if each is not None), default=None)
