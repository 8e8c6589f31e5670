"""Process sets: some of the ranks, among which operations run on their own."""

import operator
from collections.abc import Iterable, Sequence

from taco_torch.horovod import job
from taco_torch.horovod.job import internal_errors, standing, the_job


class ProcessSet:
    """Some ranks of the job, which knows it once ``add_process_set()`` or ``init()`` has
    registered it.

    Attributes:
        ranks: their global ranks, sorted.
        process_set_id: 0 for the global set, others from 1; None: not registered.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        """Raises ValueError for ranks that are negative or named twice, TypeError for others."""
        try:
            self.ranks = sorted(operator.index(rank) for rank in ranks)
        except TypeError:
            raise TypeError(
                f"a process set is a list of ranks, got {ranks!r}; communicators of MPI are not "
                "understood"
            ) from None
        self.process_set_id: int | None = None
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"the process set {self.ranks} names a rank twice")
        if any(rank < 0 for rank in self.ranks):
            raise ValueError(f"the process set {self.ranks} names a negative rank")

    def size(self) -> int | None:
        """How many ranks it has; None: not registered."""
        return None if self.process_set_id is None else len(_registered(self).ranks)

    def rank(self) -> int | None:
        """This process's rank within the set; None: not registered.

        Raises ValueError if this process is not of it."""
        if self.process_set_id is None:
            return None
        own = standing().rank
        ranks = _registered(self).ranks
        if own not in ranks:
            raise ValueError(f"rank {own} is not of the process set {ranks}")
        return ranks.index(own)

    def included(self) -> bool | None:
        """Whether this process is of it; None: not registered."""
        return None if self.process_set_id is None else standing().rank in _registered(self).ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__


def _registered(process_set: ProcessSet) -> ProcessSet:
    """The set, or NotInitializedError: without a job, no set is registered."""
    standing()
    return process_set


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

_sets: dict[int, ProcessSet] = {}  # of the running job, by id


def id_of(process_set: ProcessSet) -> int:
    """The id of a set that this rank belongs to.

    Raises ValueError if it does not, or the set is not registered."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {process_set!r}, but must be a hvd.ProcessSet")
    running = the_job()
    number = process_set.process_set_id
    if number is None or (number != 0 and _sets.get(number) is not process_set):
        raise ValueError(
            f"the process set {process_set.ranks} is not registered: pass it to "
            "hvd.add_process_set() or hvd.init() on all ranks first"
        )
    if running.rank not in process_set.ranks:
        raise ValueError(f"rank {running.rank} is not of the process set {process_set.ranks}")
    return number


def begin(size: int) -> None:
    """The job has started with so many ranks."""
    global_process_set.ranks = list(range(size))
    _sets.clear()
    _sets[0] = global_process_set


def end() -> None:
    """The job is over: no set is registered any more."""
    for number, process_set in _sets.items():
        if number != 0:
            process_set.process_set_id = None
    _sets.clear()
    global_process_set.ranks = []


def check_apart(wanted: Sequence[ProcessSet], size: int | None = None) -> None:
    """ValueError if a set is there twice, or already, or has no ranks or those of no process."""
    known = {tuple(process_set.ranks): process_set for process_set in _sets.values()}
    for process_set in wanted:
        ranks = tuple(process_set.ranks)
        if process_set.process_set_id is not None or ranks in known:
            raise ValueError(f"there is a process set of the ranks {list(ranks)} already")
        if not ranks:
            raise ValueError("a process set needs at least one rank")
        if size is not None and ranks[-1] >= size:
            raise ValueError(f"the process set {list(ranks)} has ranks beyond {size - 1}, the last")
        known[ranks] = process_set


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a process set. Collective: all ranks call it, also those that are not of the set,
    with the same ranks in any order, and in the same order of calls.

    Args:
        process_set: not registered yet; or global ranks.

    Returns:
        The set, with its id.

    Raises:
        ValueError: there is a set of these ranks already, or they are not ranks of the job.
        RuntimeError: other ranks add another set.
        NotInitializedError, HorovodInternalError: see exceptions.
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    running = the_job()
    check_apart([wanted], running.size)
    name = f"add_process_set.{running.next_number(0, 'add_process_set')}"
    submission = running.submit(0, "add_process_set", name, [], ranks=wanted.ranks)
    with internal_errors():
        submission.wait()
    number = int(submission.process_set)
    wanted.process_set_id = number
    _sets[number] = wanted
    return wanted


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set. Collective: all ranks call it, when no operation of the set is pending.

    Returns:
        Whether there was such a set; the global one stays.

    Raises:
        RuntimeError: other ranks remove another set.
    """
    running = the_job()
    number = process_set.process_set_id
    if not number or _sets.get(number) is not process_set:
        return False
    name = f"remove_process_set.{running.next_number(0, 'remove_process_set')}"
    submission = running.submit(0, "remove_process_set", name, [], root=number)
    with internal_errors():
        submission.wait()
    del _sets[number]
    process_set.process_set_id = None
    return True


def process_set_ids() -> list[int]:
    """The ids of all sets of the job, the global one's first."""
    standing()
    return sorted(_sets)


def forget_job() -> None:
    """Ends the job and with it all sets."""
    if job.is_standing():
        end()
    job.stop()
