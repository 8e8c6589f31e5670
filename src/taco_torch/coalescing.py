"""Blocks of coalesced calls belong to the thread that opened them, and end when it leaves them.

Torch keeps one list of open blocks for all threads, and takes a block that an exception has left
for open. Whatever a thread then calls in a group with such a block is put off until an end that
another thread reaches, or nobody: the call returns, and nothing has been done.
"""

import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from taco_torch._extension import _C


class _Lists(threading.local):
    def __init__(self) -> None:
        self.open: dict[dist.ProcessGroup, list[Any]] = {}


class ThreadBlocks(MutableMapping[dist.ProcessGroup, list[Any]]):
    """The open blocks of the thread that asks, by group."""

    def __init__(self) -> None:
        self._lists = _Lists()

    def __contains__(self, group: object) -> bool:
        return group in self._lists.open

    def __getitem__(self, group: dist.ProcessGroup) -> list[Any]:
        return self._lists.open[group]

    def __setitem__(self, group: dist.ProcessGroup, calls: list[Any]) -> None:
        self._lists.open[group] = calls

    def __delitem__(self, group: dist.ProcessGroup) -> None:
        del self._lists.open[group]

    def __iter__(self) -> Iterator[dist.ProcessGroup]:
        return iter(self._lists.open)

    def __len__(self) -> int:
        return len(self._lists.open)


_torch_block = c10d._coalescing_manager


def is_ours(group: dist.ProcessGroup, device: torch.device) -> bool:
    return isinstance(group._get_backend(device), _C.ProcessGroupTaco)


@contextmanager
def block(
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
    async_ops: bool = False,
) -> Iterator[Any]:
    """Torch's ``_coalescing_manager``, which also ends when an exception leaves it."""
    group = group or c10d._get_default_group()
    began = False
    try:
        with _torch_block(group, device, async_ops) as manager:
            began = True
            yield manager
            began = False
    except BaseException:
        c10d._world.pg_coalesce_state.pop(group, None)
        if began and device is not None and is_ours(group, device):
            group._end_coalescing(device)
        raise


def install() -> None:
    """For all groups of the process."""
    # Any, since torch declares a dict, and the names of functions as constants.
    world = cast(Any, c10d._world)
    modules: list[Any] = [c10d, dist]
    world._pg_coalesce_state = ThreadBlocks()
    for module in modules:
        module._coalescing_manager = block
