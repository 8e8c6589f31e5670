"""The name of a job among others, and the port where its ranks meet by default.

A job that torchrun or tacorun has started has a port of its own already; that of an mpirun or of
srun is found from what its launcher calls the job, alike on all ranks. The answer of a process
manager is kept; one thread at a time may ask (environment.py, under job.py's lock).
"""

import contextlib
import hashlib
import os
import re
import socket
import stat
from collections.abc import Mapping

from taco_torch.horovod import slurm

# Below the ports that Linux gives to programs which ask for any.
_FIRST_PORT, _PORTS = 20_000, 10_000
_OPEN_MPI = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
_HYDRA = ("I_MPI_HYDRA_UUID",)  # Intel's
_ANSWER_S = 10.0
_answers: dict[tuple[int, int], str] = {}  # by process and descriptor: a job has one name


def of(launcher: str, given: Mapping[str, str]) -> str:
    """The name of the job that this launcher has started; "" where it tells none."""
    if launcher == "srun":
        return slurm.job_of(given)
    names = {"Open MPI": _OPEN_MPI, "Hydra": _HYDRA}.get(launcher, ())
    for name in names:
        if name in given:
            return f"{launcher}-{given[name]}".replace(" ", "-").lower()
    if launcher == "Hydra" and re.fullmatch(r"[0-9]{1,6}", given.get("PMI_FD", "")):
        return _key_space(int(given["PMI_FD"]))
    return ""


def port_of(job: str) -> int:
    """From 20000 to 29999, and the same on all ranks. Two jobs have the same one once in ten
    thousand times; the later one then cannot open it, and says so."""
    digest = hashlib.sha256(job.encode("utf-8", "surrogateescape")).digest()
    return _FIRST_PORT + int.from_bytes(digest[:8], "big") % _PORTS


def _key_space(descriptor: int) -> str:
    """MPICH's name of the job, which no variable holds: its process manager says it over the socket
    that each rank inherits, in a line of PMI-1. "" where there is no such socket (a wrapper of the
    program has closed it, say, and the number may be another's since).

    Raises:
        ValueError: it does not answer, although it may have answered other ranks.
    """
    known = _answers.get((os.getpid(), descriptor))
    if known is not None:
        return known
    if not _may_be_the_manager_s(descriptor):
        return ""
    answer, problem = b"", "has not answered"
    was_blocking = os.get_blocking(descriptor)
    try:
        with socket.socket(fileno=os.dup(descriptor)) as manager:
            manager.settimeout(_ANSWER_S)
            manager.sendall(b"cmd=get_my_kvsname\n")
            while not answer.endswith(b"\n") and len(answer) < 1024:
                more = manager.recv(1024)
                if not more:
                    break
                answer += more
    except OSError as error:
        problem = f"has not answered ({error})"
    finally:  # it is shared with an MPI library, if there is one
        os.set_blocking(descriptor, was_blocking)
    found = re.search(rb"kvsname=([\w.@:-]+)", answer)
    if found is None:
        raise ValueError(
            f"PMI_FD is {descriptor}, the socket of MPICH's process manager, which {problem} what "
            "this job's name is: unset PMI_FD on all ranks, and set MASTER_PORT alike"
        )
    name = _answers[os.getpid(), descriptor] = found[1].decode("ascii")
    return name


def _may_be_the_manager_s(descriptor: int) -> bool:
    """Whether it is one of a pair of connected sockets, which have no names."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as found:
                is_stream = found.type == socket.SOCK_STREAM
                names = {found.getsockname(), found.getpeername()}
                return found.family == socket.AF_UNIX and is_stream and names == {""}
    return False
