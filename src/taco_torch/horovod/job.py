"""The running job of this process: its group, its controller, and what ``init()`` has found out.

A process has one job at a time. ``init()`` makes it and ``shutdown()`` ends it; every other
function asks for it by ``the_job()``. Its group is made directly, never torch.distributed's default
one, which the program may make for itself before or after.

A forked child, a worker of a DataLoader say, has no part in its parent's job, but is still told
what is fixed in it: ``standing()``.
"""

import atexit
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from taco_torch import backend as taco  # registers what a process with groups needs
from taco_torch._extension import _C
from taco_torch.errors import (
    AbortedError,
    CollectiveTimeoutError,
    PeerLostError,
    RendezvousError,
)
from taco_torch.horovod.environment import World, world
from taco_torch.horovod.exceptions import HorovodInternalError, NotInitializedError
from taco_torch.horovod.rendezvous import ended_by_losses, find_places, meet
from taco_torch.horovod.settings import Settings, settings

_NO_LIMIT = timedelta(days=365)
_ENDING = (AbortedError, CollectiveTimeoutError, PeerLostError, RendezvousError)


@contextmanager
def internal_errors() -> Iterator[None]:
    """Errors of taco after which ranks can do nothing together become HorovodInternalError; those
    that all ranks agree on, and that leave the job usable, stay what they are."""
    try:
        yield
    except _ENDING as error:
        raise HorovodInternalError(str(error)) from error


class Job:
    """A group of ranks with a controller. Any thread may use it."""

    def __init__(self, place_in: World, how: Settings) -> None:
        self.rank = place_in.rank
        self.size = place_in.size
        store, self.name = meet(place_in, how.start_seconds)
        places = find_places(store, place_in, how.alike())
        self.place = places[self.rank]
        self.is_homogeneous = len({place.local_size for place in places}) == 1
        # Reducers whose compressed gradients the controller knows nothing of.
        self.compressing: WeakSet[object] = WeakSet()
        self._joins = 0  # how often all ranks have joined
        self._counts: Counter[tuple[int, str]] = Counter()
        self._counting = threading.Lock()
        with internal_errors(), ended_by_losses():
            self.backend = taco.ProcessGroupTaco(
                store,
                self.rank,
                self.size,
                None,
                timedelta(seconds=how.start_seconds),
                self.name,
                list(range(self.size)),
                False,
            )
            # Ranks may be apart for as long as they like: one of them evaluates, say.
            self.backend.set_timeout(_NO_LIMIT)
            self.controller = _C.Controller(
                self.backend,
                fusion_bytes=how.fusion_bytes,
                cycle_seconds=how.cycle_seconds,
                cache_slots=how.cache_slots,
                stall_warning_seconds=how.stall_warning_seconds,
                stall_shutdown_seconds=how.stall_shutdown_seconds,
            )
        if how.timeline and self.rank == 0:
            self.controller.start_timeline(how.timeline, how.timeline_marks_cycles)

    def next_number(self, process_set: int, kind: str) -> int:
        """The next unnamed operation of its kind in its process set. Counted apart, so that ranks
        which are in different process sets count alike in those that they share."""
        with self._counting:
            self._counts[process_set, kind] += 1
            return self._counts[process_set, kind]

    def all_have_joined(self) -> None:
        """Counting begins anew: a rank that joined early has submitted less than others."""
        with self._counting:
            self._joins += 1
            for key in [key for key in self._counts if key[0] == 0]:
                del self._counts[key]

    @property
    def stage(self) -> tuple[str, int]:
        """Alike on all ranks, and another one once all have joined. What ranks agree on holds for a
        stage: in the one before, a rank that had joined had no part in it."""
        return self.name, self._joins

    def submit(self, process_set: int, kind: str, name: str, *tensors: Any, **more: Any) -> Any:
        with internal_errors():
            return self.controller.submit(process_set, kind, name, *tensors, **more)

    def end(self) -> None:
        """Pending operations fail, here and at the other ranks."""
        try:
            self.controller.shutdown()  # tells what a timeline's file has refused
        finally:
            self.backend.shutdown()


_job: Job | None = None
_standing: Job | None = None  # the job, or a forked child's parent's
_changing = threading.RLock()  # held while a job starts or ends
_of_parents: list[Job] = []  # what a forked child must neither use nor destroy


def current() -> Job | None:
    return _job


def the_job() -> Job:
    """Raises NotInitializedError where there is none."""
    found = _job
    if found is not None:
        return found
    if _standing is not None:
        raise NotInitializedError(
            "this process was forked from one that has called hvd.init(), and has no part in its "
            "job: operations run in that process, or in a job of this one's own, after hvd.init()"
        )
    raise NotInitializedError("Horovod has not been initialized; use hvd.init().")


def standing() -> Job:
    """The job, or in a forked child that has made none the parent's: for what never changes in it,
    such as its size, and for nothing else. Raises NotInitializedError where there is none."""
    return _standing if _standing is not None else the_job()


def is_standing() -> bool:
    """Whether ``standing()`` has an answer."""
    return _standing is not None


def start() -> Job | None:
    """Joins the other ranks; None where there is a job already. Collective."""
    global _job, _standing
    with _changing:
        if _job is not None:
            return None
        how = settings()
        _job = _standing = Job(world(), how)
        return _job


def stop() -> None:
    """Ends the job, if there is one."""
    global _job, _standing
    with _changing:
        ended, _job, _standing = _job, None, None
        if ended is not None:
            ended.end()


def _in_child() -> None:
    global _job, _changing
    _changing = threading.RLock()
    if _job is not None:
        _of_parents.append(_job)
        _job = None


os.register_at_fork(after_in_child=_in_child)
atexit.register(stop)
