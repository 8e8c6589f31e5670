"""The name of a job among others, and the port where its ranks meet by default.

A job that torchrun or tacorun has started has a port of its own already; that of an mpirun or of
srun is found from what its launcher calls the job, alike on all ranks. Functions without a state.
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
_ANSWER_S = 2.0


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
    program has closed it, say), or no answer."""
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return ""
        with socket.socket(fileno=os.dup(descriptor)) as manager:
            manager.settimeout(_ANSWER_S)
            try:
                manager.sendall(b"cmd=get_my_kvsname\n")
                answer = b""
                while not answer.endswith(b"\n") and len(answer) < 1024:
                    more = manager.recv(1024)
                    if not more:
                        return ""
                    answer += more
            finally:
                manager.settimeout(
                    None
                )  # the socket is shared with an MPI library, if there is one
        found = re.search(rb"kvsname=([\w.@:-]+)", answer)
        return found[1].decode("ascii") if found else ""
    return ""
