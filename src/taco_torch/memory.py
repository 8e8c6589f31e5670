"""Tensors in memory that suits messages: large pages, all of them there from the start."""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
from collections.abc import Sequence

import torch

__all__ = ["empty"]

_HUGE_PAGE = 2 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14; Python has no name for it
_NO_FORK = 10  # MADV_DONTFORK


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialized CPU tensor for buffers that are sent or received again and again.

    Its memory is there from the start, so the first message does not wait for pages one by one,
    and lies on huge pages where the host has transparent ones (``always`` or ``madvise``). Later
    messages take as long as those of any other tensor, which serves as well. Views keep the memory,
    which is given back with the last of them. Worker processes that are forked do not have it.

    Args:
        size: the shape, as ``torch.empty`` takes it: ``empty(2, 3)`` or ``empty((2, 3))``.
        dtype: of the elements; torch's default dtype if None.

    Raises:
        ValueError: a size is negative.
        MemoryError: the host has not that much memory.
    """
    nested = len(size) == 1 and not isinstance(size[0], int)
    shape = torch.Size(size[0] if nested else size)  # type: ignore[arg-type]
    if any(extent < 0 for extent in shape):
        raise ValueError(f"size={tuple(shape)}: no extent may be negative")
    kind = torch.get_default_dtype() if dtype is None else dtype
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=kind, device="cpu")
    memory, begin = _memory(count * kind.itemsize)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=begin).view(shape)


def _memory(size: int) -> tuple[mmap.mmap, int]:
    """At least so many bytes, and where in them the tensor begins."""
    large = size >= _HUGE_PAGE
    room = size + _HUGE_PAGE if large else size
    try:
        memory = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no {size} bytes of memory: {error}") from error
    begin = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _HUGE_PAGE if large else 0
    memory.madvise(_NO_FORK)
    if large:
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            memory.madvise(mmap.MADV_HUGEPAGE, begin, size)
    try:
        memory.madvise(_POPULATE_WRITE, begin, size)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise MemoryError(f"no {size} bytes of memory: {error}") from error
        memory[begin : begin + size : mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))
    return memory, begin
