"""The environment that a rank finds.

The launcher's own environment goes along, as with horovodrun, but for what belongs to a host or to
another launcher: a tacorun that stands in a job of mpirun's must not pass that job's ranks on.
Functions without a state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from taco_torch.launch.errors import LaunchError
from taco_torch.launch.hosts import Slot

# Ranks of another launcher, and what a shell keeps for itself.
_LEFT_OUT = re.compile(
    r"(?:OMPI_|PMIX_|PMI_|PRTE_|PRRTE_|HYDI_|HYDRA_|MPI_LOCAL|TORCHELASTIC_|TACORUN_|BASH_FUNC_).*"
    r"|SLURM_(?:PROCID|LOCALID|NODEID|GTIDS|TASK_PID|STEPID|STEP_.*)"
    r"|(?:ROLE_|LOCAL_|GROUP_)?(?:RANK|WORLD_SIZE)|MASTER_ADDR|MASTER_PORT|ROLE_NAME"
    r"|HOROVOD_(?:RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME|ELASTIC)"
    r"|OLDPWD|PWD|SHLVL|_"
)
# Known to another host better than to this one.
_OF_A_HOST = {
    *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "SSH_AUTH_SOCK", "SSH_CLIENT"),
    *("SSH_CONNECTION", "SSH_TTY"),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the launcher's environment that all ranks get."""
    return {name: value for name, value in environment.items() if not _LEFT_OUT.fullmatch(name)}


def for_another_host(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in _OF_A_HOST}


def named(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that -x NAME and -x NAME=VALUE name."""
    found = {}
    for text in names:
        name, said, value = text.partition("=")
        if not _NAME.fullmatch(name):
            raise LaunchError(f"-x {text}: {name!r} is no name of a variable")
        if not said and name not in environment:
            raise LaunchError(f"-x {name}: it is not set here; write -x {name}=VALUE, or set it")
        found[name] = value if said else environment[name]
    return found


def of_a_slot(slot: Slot, address: str, port: int) -> dict[str, object]:
    """Horovod's variables and torch's, which a program without Horovod's API reads."""
    return {
        "HOROVOD_RANK": slot.rank,
        "HOROVOD_SIZE": slot.size,
        "HOROVOD_LOCAL_RANK": slot.local_rank,
        "HOROVOD_LOCAL_SIZE": slot.local_size,
        "HOROVOD_CROSS_RANK": slot.cross_rank,
        "HOROVOD_CROSS_SIZE": slot.cross_size,
        "RANK": slot.rank,
        "WORLD_SIZE": slot.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_WORLD_SIZE": slot.local_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def as_strings(variables: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items()}
