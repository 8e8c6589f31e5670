"""The job's beginning and end, who this process is in it, and what this library is built of."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from taco_torch.errors import TacoError, VersionMismatchError
from taco_torch.horovod import job, process_sets
from taco_torch.horovod.exceptions import HorovodInternalError, JobEndedError
from taco_torch.horovod.job import internal_errors, standing, the_job
from taco_torch.horovod.process_sets import ProcessSet
from taco_torch.launch import member

# Worlds of an elastic job, one after the other, that lose a rank while they are being made.
_ATTEMPTS = 20
# So many of them may fail by what the launcher knows nothing of, a network say.
_UNEXPLAINED = 3


def init(
    comm: Sequence[int] | None = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
) -> None:
    """Joins the other ranks of the job. Collective. Does nothing where there is a job already.

    Who this process is and where rank 0 is say the variables of whatever has started it
    (environment.py); how the job works say HOROVOD_* variables (settings.py). May be called again
    after ``shutdown()``, any number of times. A rank of an elastic job that loses another one
    meanwhile meets the others again in the next world, and prints why; not for ever where tacorun
    knows of no loss.

    Args:
        comm: None, or all ranks of the job; for some of them there are process sets.
        process_sets: to register at once, the same on all ranks; or ``"dynamic"``, which is taken
            and says nothing: ``add_process_set()`` always works.

    Raises:
        ValueError: a variable is malformed; process sets are there twice or of ranks that are not;
            ``comm`` is something else.
        HorovodInternalError: the other ranks did not come.
        JobEndedError: another rank of an elastic job has ended well meanwhile.
        VersionMismatchError: ranks differ in their version or settings; see taco_torch.errors.
    """
    wanted = _listed(process_sets)
    _check_apart(wanted)
    unexplained, last = 0, ""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            started = job.start()
            if started is not None:
                _begin(started, wanted, comm)
            return
        except member.JobFinished:
            if not last:
                raise
            raise JobEndedError(
                "another rank has come to the end of its program while this one was still in "
                f"hvd.init(), and has run nothing: all ranks must call it. {last}"
            ) from None
        except VersionMismatchError:  # as it would be in the next world
            raise
        except (HorovodInternalError, TacoError) as error:
            if attempt == _ATTEMPTS or not member.present():
                raise
            unexplained += not member.lost()
            if unexplained == _UNEXPLAINED:
                raise
            last = str(error).partition("\n")[0]  # torch's go on with addresses of functions
            said = f"hvd.init() of rank {os.environ.get('HOROVOD_RANK', '?')} meets again: {last}"
            print(said, file=sys.stderr, flush=True)


def _listed(given: Sequence[ProcessSet] | str | None) -> list[ProcessSet]:
    if given is None or given == "dynamic":
        return []
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f'process_sets is {given!r}, but must be process sets or "dynamic"')
    return [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in given]


def _check_apart(wanted: list[ProcessSet]) -> None:
    if job.current() is None:
        process_sets.check_apart(wanted)


def _begin(started: job.Job, wanted: list[ProcessSet], comm: Any) -> None:
    """All that follows the start; the job does not outlive an error."""
    process_sets.begin(started.size)
    try:
        if comm is not None and list(comm) != list(range(started.size)):
            raise ValueError(
                f"init(comm={comm!r}): the job has all {started.size} ranks that were started; use "
                "process sets for some of them"
            )
        process_sets.check_apart(wanted, started.size)
        for process_set in wanted:
            process_sets.add_process_set(process_set)
    except BaseException:
        process_sets.forget_job()
        raise


def shutdown() -> None:
    """Leaves the job, if there is one. Pending operations fail, here and at the other ranks, with
    HorovodInternalError. Also called when the interpreter ends."""
    process_sets.forget_job()


# The numbers of a job never change: a forked child is told those of its parent's, as by Horovod.


def is_initialized() -> bool:
    """Whether there is a job. True also in a process that was forked from one with a job, which may
    ask for its numbers and run no operation."""
    return job.is_standing()


def rank() -> int:
    """This process's rank, from 0 to ``size() - 1``; as the next six, in a forked child its
    parent's. NotInitializedError without a job."""
    return standing().rank


def size() -> int:
    """The number of ranks. NotInitializedError without a job."""
    return standing().size


def local_rank() -> int:
    """The rank among those on the same host. NotInitializedError without a job."""
    return standing().place.local_rank


def local_size() -> int:
    """The number of ranks on this host. NotInitializedError without a job."""
    return standing().place.local_size


def cross_rank() -> int:
    """The rank among those with the same local rank. NotInitializedError without a job."""
    return standing().place.cross_rank


def cross_size() -> int:
    """The number of ranks with the same local rank. NotInitializedError without a job."""
    return standing().place.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of ranks. NotInitializedError without a job."""
    return standing().is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes from now on when operations are negotiated and run, in Chrome's trace format.

    Args:
        file_path: written by rank 0 alone; an existing file is replaced.
        mark_cycles: shows when rounds of the negotiation begin.

    Raises:
        ValueError: there is a timeline already.
        RuntimeError: the file cannot be written.
    """
    running = the_job()
    if running.rank == 0:
        with internal_errors():
            running.controller.start_timeline(str(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Ends the timeline; its file is complete then."""
    running = the_job()
    if running.rank == 0:
        with internal_errors():
            running.controller.stop_timeline()


# Libraries that Horovod may be built with. This one is not: it has a transport of its own.


def mpi_threads_supported() -> bool:
    """False: there is no MPI. NotInitializedError without a job."""
    standing()
    return False


def mpi_enabled() -> bool:
    """False: there is no MPI."""
    return False


def mpi_built() -> bool:
    """False: there is no MPI."""
    return False


def gloo_enabled() -> bool:
    """False: there is no gloo."""
    return False


def gloo_built() -> bool:
    """False: there is no gloo."""
    return False


def nccl_built() -> int:
    """0: there is no NCCL."""
    return 0


def ddl_built() -> bool:
    """False: there is no DDL."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL."""
    return False


def cuda_built() -> bool:
    """False: tensors are on the CPU."""
    return False


def rocm_built() -> bool:
    """False: tensors are on the CPU."""
    return False
