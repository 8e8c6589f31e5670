"""Functions that torch.distributed offers for gloo groups only."""

from datetime import timedelta

import torch
import torch.distributed as dist

from taco_torch._extension import _C


def taco_backend(group: dist.ProcessGroup | None = None) -> _C.ProcessGroupTaco:
    """The taco backend of a group (default: WORLD). TypeError if the group has another one."""
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("torch.distributed is not initialised")
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
    if not isinstance(backend, _C.ProcessGroupTaco):
        raise TypeError(f"the group's backend for CPU tensors is not taco but {backend!r}")
    return backend


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Waits for every rank of the group, or says which ranks are missing.

    Like ``torch.distributed.monitored_barrier``, which refuses every backend but gloo.

    Args:
        group: default: WORLD.
        timeout: default: the timeout of the group.
        wait_all_ranks: name all missing ranks, not only the first.

    Raises:
        CollectiveTimeoutError: some ranks did not come in time; the text names them.
        PeerLostError: a rank is dead.
    """
    outside: object = dist.GroupMember.NON_GROUP_MEMBER
    if group is outside:
        return  # as torch does on a rank that is not in the group
    taco_backend(group).monitored_barrier(timeout, wait_all_ranks)
