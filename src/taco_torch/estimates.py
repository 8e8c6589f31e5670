"""Estimates of time end when their block is left, also by an exception.

Torch has the backend end an estimate only where the block ends in good order. After an exception
the thread would go on estimating: its collectives would return, and nothing would have been done.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d as c10d

from taco_torch._extension import _C

_torch_block: Any = getattr(c10d, "_time_estimator", None)


@contextmanager
def block(
    group: dist.ProcessGroup | None = None, device: torch.device | None = None
) -> Iterator[Any]:
    """Torch's ``_time_estimator``, which also ends when an exception leaves it."""
    group = group or c10d._get_default_group()
    try:
        with _torch_block(group, device) as estimate:
            yield estimate
    except BaseException:
        backend = group._get_backend(device or c10d._get_pg_default_device(group))
        if isinstance(backend, _C.ProcessGroupTaco):
            end: Any = Backend._end_time_estimate  # type: ignore[attr-defined]
            with suppress(RuntimeError):  # it had not begun
                end(backend)
        raise


def install() -> None:
    """For all groups of the process, where torch asks all backends (2.15 on)."""
    if not hasattr(Backend, "_end_time_estimate"):
        return
    modules: list[Any] = [c10d, dist]
    for module in modules:
        module._time_estimator = block
