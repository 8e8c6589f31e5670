"""Creates taco groups. Importing this module prepares the process for them."""

import atexit
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import _DistributedBackendOptions

from taco_torch import coalescing, estimates, futures, group_reports
from taco_torch._extension import _C

Options = _C.Options
ProcessGroupTaco = _C.ProcessGroupTaco


def create(opts: _DistributedBackendOptions, pg_options: object) -> _C.ProcessGroupTaco:
    """Creates the backend of a group for torch, and joins the other ranks.

    Raises:
        TypeError: ``pg_options`` belong to another backend.
        RendezvousError, VersionMismatchError: see taco_torch.errors.
    """
    if pg_options is not None and not isinstance(pg_options, _C.Options):
        if not _has_another_backend(opts):
            raise TypeError(
                f"pg_options of a taco group must be taco_torch.Options, got {type(pg_options)!r}"
            )
        pg_options = None  # torch gives the options of one backend to all
    _install_lightcc()
    timeout = opts.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    return _C.ProcessGroupTaco(
        opts.store,
        opts.group_rank,
        opts.group_size,
        pg_options,
        timeout,
        opts.group_id,
        list(opts.global_ranks_in_group),
        getattr(opts, "enable_reconfigure", False),  # torch has it from 2.14 on
    )


def _has_another_backend(opts: _DistributedBackendOptions) -> bool:
    """Whether the group is like "cpu:taco,cuda:nccl": torch then names it after the other one."""
    group: Any = getattr(opts, "process_group", None)  # torch has it from 2.15 on
    return group is not None and group.name() != "custom"


def _install_lightcc() -> None:
    """For all models that are made once there is a group."""
    light = _C.lightcc_environment()
    from taco_torch.lightcc import ddp

    ddp.install()
    if light["compresses"]:
        from taco_torch.lightcc import fsdp

        ddp.install_for_all()
        fsdp.install_for_all()
    elif light["auto"]:
        ddp.say_that_nothing_is_allowed()


futures.install()
coalescing.install()
estimates.install()
group_reports.install()
# No callback of a pending operation may run while the interpreter shuts down.
atexit.register(_C.shut_down_all)
