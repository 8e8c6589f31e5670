"""States: what elastic training keeps in memory, so that it can go back to the last commit.

The contract is that of Horovod's horovod.common.elastic. A state belongs to the thread that trains.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

from taco_torch.horovod.exceptions import HostsUpdatedInterrupt
from taco_torch.launch import member


class HostUpdateResult:
    """The changes of hosts; the numbers are added up."""

    no_update = 0
    removed = member.REMOVED
    added = member.ADDED
    mixed = removed | added


class State:
    """Keeps what a training loop changes, for ``run``. Subclasses say how to save, restore and
    synchronise it.

    Args:
        bcast_object: returns rank 0's argument on every rank.
        get_rank: returns this process's rank.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **_: Any
    ) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._last_updated_timestamp: float = 0
        self._host_messages: list[tuple[float, int]] = []
        self._seen = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Functions to call once the ranks have met again, to scale a learning rate for example."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have met again: ``run`` calls it before it synchronises the state."""
        self._host_messages = []
        self._seen = 0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Hosts have changed at that time (seconds); see ``HostUpdateResult``."""
        self._host_messages.append((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, to which ``restore()`` goes back, and checks for changed hosts. All
        ranks call it at the same place of their loop.

        Raises:
            HostsUpdatedInterrupt: on all ranks at once; ``run`` catches it.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Asks on rank 0 whether hosts have come or gone. All ranks call it at the same place.

        Raises:
            HostsUpdatedInterrupt: they have; on all ranks at once.
        """
        self._hear()
        previous = latest = self._last_updated_timestamp
        found = HostUpdateResult.no_update
        for timestamp, update in self._host_messages:
            if timestamp > previous:
                latest = max(latest, timestamp)
                found |= update
        self._host_messages = []
        # Rank 0's word counts: the launcher's reaches some ranks a moment before others.
        previous, self._last_updated_timestamp, found = self._bcast_object(
            (previous, latest, found)
        )
        if self._last_updated_timestamp > previous:
            raise HostsUpdatedInterrupt(found == HostUpdateResult.removed)

    def _hear(self) -> None:
        if member.present():
            updates = member.updates()
            if updates & ~self._seen:
                self._seen |= updates
                self.on_hosts_updated(time.time(), updates)

    def save(self) -> None:
        """Keeps the state as it is."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes every rank's state that of rank 0. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepares for another world, before ``sync()``."""


class ObjectState(State):
    """Python objects, each an attribute of the state.

    Args:
        bcast_object, get_rank: see State.
        kwargs: names and values; a saved value is a copy.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        self._set_attrs(kwargs)
        self._saved_state = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Keeps copies of the values."""
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        """The values as they were saved."""
        self._set_attrs(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Rank 0's values, which are saved by that."""
        if self._saved_state:
            self.save()
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs(copy.deepcopy(self._saved_state))

    def _set_attrs(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
