"""Creates taco groups. Importing this module prepares the process for them."""

import atexit
from datetime import timedelta

from torch._C._distributed_c10d import _DistributedBackendOptions

from taco_torch import coalescing, estimates, futures, group_reports
from taco_torch._extension import _C

Options = _C.Options
ProcessGroupTaco = _C.ProcessGroupTaco


def create(opts: _DistributedBackendOptions, pg_options: object) -> _C.ProcessGroupTaco:
    """Creates the backend of a group for torch, and meets the other ranks.

    Raises:
        TypeError: ``pg_options`` belong to another backend.
        RendezvousError, VersionMismatchError: see taco_torch.errors.
    """
    if pg_options is not None and not isinstance(pg_options, _C.Options):
        raise TypeError(
            f"pg_options of a taco group must be taco_torch.Options, got {type(pg_options)!r}"
        )
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
