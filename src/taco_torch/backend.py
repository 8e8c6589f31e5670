"""Registration of the backend "taco" with torch.distributed."""

import atexit
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions

from taco_torch import _C


def _create(opts: _DistributedBackendOptions, pg_options: object) -> _C.ProcessGroupTaco:
    if pg_options is not None and not isinstance(pg_options, _C.Options):
        raise TypeError(
            f"pg_options of a taco group must be taco_torch.Options, got {type(pg_options)!r}"
        )
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
    )


def register() -> None:
    """Makes "taco" known to init_process_group for cpu and cuda; done by importing taco_torch."""
    if hasattr(dist.Backend, "TACO"):
        return
    dist.Backend.register_backend("taco", _create, extended_api=True, devices=["cpu", "cuda"])
    # A callback of a pending operation must not meet an interpreter that is being taken down.
    atexit.register(_C.shut_down_all)
