"""A task of SLURM's srun: whether this process is one, and where its job's ranks are.

What srun sets for a task is taken: SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, and of its step the
number of tasks, how many run on each node, and the names of the nodes. The script of sbatch and a
shell of salloc have some of these variables too, and are no tasks: they are known by the missing
or special SLURM_STEP_ID; a shell of srun --pty by slurm_shell.py. Functions without
a state, over variables that are passed in.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import product

from taco_torch.horovod.variables import number

Given = Mapping[str, str]

RANK = ("SLURM_PROCID",)
SIZE = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
LOCAL_RANK = ("SLURM_LOCALID",)
_NODE = ("SLURM_NODEID",)
# Lists of nodes, and beside each how many there must be.
_NODES = {
    "SLURM_STEP_NODELIST": "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_NODELIST": "SLURM_NNODES",
    "SLURM_NODELIST": "SLURM_NNODES",
}
_TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
# Ids from here on are SLURM's names for a batch script, a shell of salloc, and the like.
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
# An mpirun has set these, which srun has started, or which starts its own daemons by srun.
_OF_AN_MPIRUN = ("OMPI_COMM_WORLD_SIZE", "MPI_LOCALRANKID")
_MOST_NODES = 1 << 16
_WORD = r"(?:[0-9]+-[0-9]+|[\w.]+)"
_ITEM = rf"(?:[\w.-]+|\[{_WORD}(?:,{_WORD})*\])+"  # of a list of nodes: node[1-3,7]


def is_task(given: Given) -> bool:
    """Whether srun has started this process or its shell, and no mpirun in between.

    Raises:
        ValueError: some of srun's variables were lost on the way to the program.
    """
    if any(name in given for name in _OF_AN_MPIRUN):
        return False
    step = given.get("SLURM_STEP_ID", given.get("SLURM_STEPID"))
    if step is None:
        if (number(RANK, given) or 0) > 0:  # a batch script's is 0
            raise ValueError(
                f"SLURM_PROCID is {given[RANK[0]]}, but SLURM_STEP_ID is not set: pass all "
                "variables SLURM_* on to the program, or none"
            )
        return False
    if not re.fullmatch(r"[0-9]{1,10}", step):
        raise ValueError(f'environment variable SLURM_STEP_ID is "{step}", but must be a number')
    return int(step) < _FIRST_SPECIAL_STEP


def job_of(given: Given) -> str:
    """The name of the step, which no other step has; "" where its number is missing."""
    job = given.get("SLURM_JOB_ID", given.get("SLURM_JOBID", ""))
    step = given.get("SLURM_STEP_ID", given.get("SLURM_STEPID", ""))
    return f"slurm-{job}.{step}" if job and step else ""


def warn_of_a_script(given: Given) -> None:
    """A script of sbatch's, or a shell on a terminal, for several tasks is one process until srun
    starts them."""
    tasks = number(SIZE, given) or 1
    if tasks > 1 and not any(name in given for name in _OF_AN_MPIRUN):
        warnings.warn(
            f"SLURM has {tasks} tasks for this job, but srun has not started this process, or "
            "only its shell (--pty): it is a world of its own. Write srun before the program (and "
            "--overlap in such a shell)",
            stacklevel=3,
        )


def tasks_here(given: Given, size: int) -> int | None:
    """How many tasks of the step run on this node; None where nothing says it.

    Raises:
        ValueError: the layout is malformed, or is one of another number of tasks or nodes.
    """
    node = number(_NODE, given)
    name = next((name for name in _TASKS_PER_NODE if name in given), None)
    if node is None or name is None:
        return None
    counts = _counts(name, given[name])
    if sum(counts) != size:
        if name != _TASKS_PER_NODE[0]:  # the job's own layout, of which the step is a part
            return None
        raise ValueError(
            f"{name} is {given[name]}, which are {sum(counts)} tasks, but there are {size}"
        )
    if node >= len(counts):
        raise ValueError(
            f"SLURM_NODEID is {node}, but {name} is {given[name]}, which are {len(counts)} nodes"
        )
    return counts[node]


def _counts(name: str, text: str) -> list[int]:
    """SLURM's "2(x3),1": three nodes of two tasks, and one of one."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,5})\))?", part)
        if not found or len(counts) + int(found[2] or 1) > _MOST_NODES:
            raise ValueError(f'environment variable {name} is "{text}", but must be like 2(x3),1')
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def first_node(given: Given) -> str | None:
    """The node of task 0; None where nothing says it.

    Raises:
        ValueError: the list is malformed, or has another number of nodes than the step.
    """
    name = next((name for name in _NODES if name in given), None)
    if name is None:
        return None
    nodes = expanded(name, given[name])
    count = number((_NODES[name],), given)
    if count is not None and count != len(nodes):
        raise ValueError(
            f"{_NODES[name]} is {count}, but {name} is {given[name]}, which are {len(nodes)} nodes"
        )
    # Tasks are laid out in the order of a file then, which only the node of srun can read.
    is_arbitrary = given.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    return None if is_arbitrary and len(nodes) > 1 else nodes[0]


def expanded(name: str, text: str) -> list[str]:
    """The nodes of a list as SLURM writes it: "login,node[1-3,07],rack[1-2]-[a,b]".

    Raises:
        ValueError: it is malformed; ``name`` is the variable's.
    """
    if not re.fullmatch(f"{_ITEM}(,{_ITEM})*", text):
        raise _malformed(name, text)
    nodes: list[str] = []
    for item in re.findall(_ITEM, text):
        for words in product(*_parts(name, text, item)):
            nodes.append("".join(words))
            if len(nodes) > _MOST_NODES:
                raise _malformed(name, text)
    return nodes


def _parts(name: str, text: str, item: str) -> Iterator[list[str]]:
    """An item cut into what stands in brackets and what does not; of each all the forms."""
    for plain, listed in re.findall(r"([^\[\]]+)|\[([^\[\]]+)\]", item):
        if plain:
            yield [plain]
            continue
        forms: list[str] = []
        for word in listed.split(","):
            span = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", word)
            if span is None:
                forms.append(word)
                continue
            first, last = int(span[1]), int(span[2])
            if not 0 <= last - first < _MOST_NODES:
                raise _malformed(name, text)
            width = len(span[1])
            forms += [f"{each:0{width}d}" for each in range(first, last + 1)]
        if not all(forms):
            raise _malformed(name, text)
        yield forms


def _malformed(name: str, text: str) -> ValueError:
    return ValueError(
        f'environment variable {name} is "{text}", but must be a list of nodes like '
        "node[1-3,7],other"
    )
