"""Which rank of which world this process is, by the variables of whatever has started it.

Understood are horovodrun's and tacorun's variables, torchrun's, those of SLURM's srun (slurm.py),
of Open MPI 4 and 5, and Hydra's (MPICH, Intel MPI), in this order, whichever launcher has started
the other; but an mpirun's count before srun's, since mpirun may start its daemons by srun. So an
srun within what an mpirun has started needs OMPI_COMM_WORLD_SIZE and MPI_LOCALRANKID unset, and an
mpirun or srun within torchrun's ranks needs RANK and WORLD_SIZE unset. No MPI library is needed. A
process without any of them is a world of its own. Two jobs on one host do not meet: where they do
is chosen by what names a job (job_name.py).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from taco_torch.horovod import job_name, slurm, slurm_shell
from taco_torch.horovod.variables import check_within, number

DEFAULT_PORT = 29500  # torch's
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class World:
    """This process's place in a job, as far as its launcher says. What it does not say is None:
    ranks then find out together, once they have met (rendezvous.py)."""

    rank: int
    size: int
    local_rank: int | None  # among the ranks of this host
    local_size: int | None
    cross_rank: int | None  # among the ranks of other hosts with the same local rank
    cross_size: int | None
    address: str  # where the job's store is, on the host of rank 0
    port: int
    agent_store: bool = False  # the launcher serves the store, not rank 0
    incarnation: str = ""  # differs where a launcher starts a world again at the same store
    job: str = ""  # differs between jobs; "": the launcher does not name them


@dataclass(frozen=True)
class _Launcher:
    """The names of a launcher's variables, those that count first; and functions of the variables,
    where a launcher tells in other ways how many ranks are on this host, and which has rank 0."""

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    cross_rank: tuple[str, ...] = ()
    cross_size: tuple[str, ...] = ()
    ranks_here: Callable[[Mapping[str, str], int], int | None] | None = None  # of so many
    first_host: Callable[[Mapping[str, str]], str | None] | None = None


_LAUNCHERS = (
    _Launcher(
        "horovodrun or tacorun",
        ("HOROVOD_RANK",),
        ("HOROVOD_SIZE",),
        ("HOROVOD_LOCAL_RANK",),
        ("HOROVOD_LOCAL_SIZE",),
        ("HOROVOD_CROSS_RANK",),
        ("HOROVOD_CROSS_SIZE",),
    ),
    _Launcher("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Launcher(
        "srun",
        slurm.RANK,
        slurm.SIZE,
        slurm.LOCAL_RANK,
        ranks_here=slurm.tasks_here,
        first_host=slurm.first_node,
    ),
    _Launcher(
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Launcher(
        "Hydra",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
    ),
)
# Files that say which hosts mpirun was told to use, the first of which has rank 0.
_HOSTFILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
)


def world(environment: Mapping[str, str] | None = None) -> World:
    """This process's place by the variables given, or else by its own, for which an elastic job of
    tacorun may first have to give it one.

    Raises:
        ValueError: variables are malformed, or contradict each other; or there are several hosts
            and nothing says on which rank 0 is.
    """
    if environment is None:
        if os.environ.get("HOROVOD_ELASTIC") == "1" and "TACORUN_MEETING" in os.environ:
            import_module("taco_torch.launch.member").enter()
        environment = os.environ
    given = {name: text.strip() for name, text in environment.items() if text.strip()}
    for launcher in _asked(given):
        found = _place(launcher, given)
        if found is not None:
            return found
    slurm.warn_of_a_script(given)
    return World(0, 1, 0, 1, 0, 1, LOOPBACK, 0)


def _asked(given: Mapping[str, str]) -> Iterator[_Launcher]:
    """The launchers whose variables count, in this order. A task of srun's may find some of an MPI
    library's beside them (srun --mpi=pmix), which name no size."""
    for launcher in _LAUNCHERS:
        if launcher.name != "srun":
            yield launcher
        elif slurm.is_task(given):
            if not slurm_shell.is_around(given):
                yield launcher
            return


def _place(launcher: _Launcher, given: Mapping[str, str]) -> World | None:
    """The place that this launcher's variables give, if it has set them."""
    rank = number(launcher.rank, given)
    size = number(launcher.size, given)
    if rank is None or size is None:
        _check_alone(launcher, given)
        return None
    local_rank = number(launcher.local_rank, given)
    local_size = number(launcher.local_size, given)
    check_within(launcher.rank[0], rank, _named(launcher.size, given), size)
    if launcher.ranks_here is not None:
        local_size = launcher.ranks_here(given, size)
    if local_rank is not None and local_size is not None:
        name = (*launcher.local_size, "the number of tasks on this node")[0]
        check_within(launcher.local_rank[0], local_rank, name, local_size)
    agent_store = given.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    restarts = given.get("TORCHELASTIC_RESTART_COUNT", "") if agent_store else ""
    elastic_world = given.get("TACORUN_WORLD", "")
    one_host = local_size == size
    job = job_name.of(launcher.name, given)
    return World(
        rank,
        size,
        local_rank,
        local_size,
        number(launcher.cross_rank, given),
        number(launcher.cross_size, given),
        _address(launcher, given, one_host),
        _port(given, job),
        agent_store,
        elastic_world or restarts,
        job,
    )


def _named(names: tuple[str, ...], given: Mapping[str, str]) -> str:
    """The one of these variables that counts."""
    return next(name for name in names if name in given)


def _check_alone(launcher: _Launcher, given: Mapping[str, str]) -> None:
    """Half of the variables of a launcher means that the other half was lost on the way, say by
    ssh; only RANK and PMIX_RANK=0 alone may belong to something else."""
    rank = next((name for name in launcher.rank if name in given), None)
    size = next((name for name in launcher.size if name in given), None)
    if (rank is None) == (size is None) or launcher.name == "torchrun":
        return
    if rank == "PMIX_RANK" and given[rank] == "0":
        return
    there, missing = (rank, launcher.size[0]) if rank else (size, launcher.rank[0])
    raise ValueError(
        f"{there} is set, but {missing} is not: pass all variables of {launcher.name} on to the "
        "program, or none"
    )


def _address(launcher: _Launcher, given: Mapping[str, str], one_host: bool) -> str:
    if "MASTER_ADDR" in given:
        return given["MASTER_ADDR"]
    if one_host:
        return LOOPBACK
    told = None if launcher.first_host is None else launcher.first_host(given)
    if told is not None:
        return told
    for host in _hosts(given):
        return host
    raise ValueError(
        f"{launcher.name} has started ranks on several hosts, and nothing says on which one rank 0 "
        "is: set MASTER_ADDR to that host on all ranks (mpirun -x MASTER_ADDR=host1 ..., or "
        "MASTER_ADDR=host1 srun ...)"
    )


def _hosts(given: Mapping[str, str]) -> Iterator[str]:
    """The hosts of the launcher's hostfile, in order."""
    for name in _HOSTFILES:
        path = Path(given.get(name, ""))
        if name in given and path.is_file():
            for line in path.read_text().splitlines():
                words = line.split("#")[0].split()
                if words:
                    yield words[0].split(":")[0]


def _port(given: Mapping[str, str], job: str) -> int:
    port = number(("MASTER_PORT",), given)
    if port is None:
        return job_name.port_of(job) if job else DEFAULT_PORT
    if not 1 <= port <= 65535:
        raise ValueError(f"MASTER_PORT is {port}, but must be from 1 to 65535")
    return port
