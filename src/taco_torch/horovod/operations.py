"""The operations that wait for their result. Those that return new tensors have gradients."""

from collections.abc import Sequence
from typing import Any

import torch

from taco_torch.horovod import asynchronous, autograd
from taco_torch.horovod.compression import Compression, Compressor
from taco_torch.horovod.process_sets import ProcessSet, global_process_set
from taco_torch.horovod.reduce_ops import Average, chosen


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combines a tensor of every rank.

    Args:
        tensor: contiguous, on the CPU, of int32, int64, float16, bfloat16, float32 or float64; the
            same shape and dtype on all ranks. Not changed.
        average: instead of ``op``: True for Average, False for Sum.
        name: matches the operation among ranks; None: the next number.
        compression: what is sent.
        op: Average (the default; of integers it truncates), Sum, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: multiply each tensor before, the result after. Of
            integers in float64, of float16 in float32.
        process_set: among which ranks.

    Returns:
        A tensor of this shape and dtype, the same on all ranks. Differentiable.

    Raises:
        ValueError: both ``op`` and ``average`` are given, the tensor is not contiguous or of
            another dtype, the name is pending in this process, or the process set is unknown or
            without this rank.
        RuntimeError: shapes, dtypes or arguments of ranks differ; the text shows both sides, all
            ranks raise, and the job stays usable.
        NotImplementedError: the tensor is not on the CPU; Adasum with a number of ranks that is no
            power of two.
        NotInitializedError, HorovodInternalError: see exceptions.
    """
    sent, context = compression.compress(tensor)
    reduced = autograd.run(
        autograd.Allreduce,
        sent,
        name,
        chosen(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
    )
    return compression.decompress(reduced, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """``allreduce()`` into the tensor itself, without autograd. Returns the tensor."""
    handle = asynchronous.allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    reduced: torch.Tensor = handle.wait()
    return reduced


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``allreduce()`` of several tensors, which start together once all ranks have submitted them.

    Args:
        tensors: as for ``allreduce()``; of several dtypes those of each start together.

    Returns:
        A tensor for each, in their order. Each may be differentiated alone.
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduced = autograd.run(
        autograd.GroupedAllreduce,
        name,
        chosen(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
        *(sent for sent, _ in pairs),
    )
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``grouped_allreduce()`` into the tensors themselves, without autograd. Returns them."""
    handle = asynchronous.grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    reduced: list[torch.Tensor] = handle.wait()
    return reduced


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Puts the tensors of all ranks one behind the other, in rank order.

    Args:
        tensor: contiguous, on the CPU, of a dtype of ``allreduce()`` or bool, uint8, int8 or int16;
            all dimensions but the first are the same on all ranks.
        name, process_set: as for ``allreduce()``.

    Returns:
        A tensor of all their rows. Differentiable.

    Raises:
        RuntimeError: the tensor has no dimensions, a rank has joined, or as ``allreduce()``.
        ValueError, NotImplementedError and others: as ``allreduce()``.
    """
    gathered: torch.Tensor = autograd.run(autograd.Allgather, tensor, name, process_set)
    return gathered


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``allgather()`` of several tensors together; each result may be differentiated alone."""
    return list(autograd.run(autograd.GroupedAllgather, name, process_set, *tensors))


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Gives every rank one rank's tensor.

    Args:
        tensor: as for ``allgather()``; the same shape on all ranks. Not changed.
        root_rank: the global rank whose tensor it is, also in a process set.
        name, process_set: as for ``allreduce()``.

    Returns:
        A tensor of this shape. Differentiable.

    Raises:
        ValueError: the root is not of the process set, or as ``allreduce()``.
        RuntimeError and others: as ``allgather()``.
    """
    received: torch.Tensor = autograd.run(autograd.Broadcast, tensor, root_rank, name, process_set)
    return received


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """``broadcast()`` into the tensor itself, without autograd. Returns the tensor."""
    received: torch.Tensor = asynchronous.broadcast_async_(
        tensor, root_rank, name, process_set
    ).wait()
    return received


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives each rank its part of every rank's tensor.

    Args:
        tensor: as for ``allgather()``.
        splits: how many rows go to each rank, one after the other: int32, of the size of the set.
            None: the same number to each.
        name, process_set: as for ``allreduce()``.

    Returns:
        The rows that came, in rank order; with ``splits`` a pair: they, and how many came from each
        rank (int32). Differentiable.

    Raises:
        ValueError: splits do not fit the tensor or the set, or are not of int32; or the rows cannot
            be shared evenly; or as ``allreduce()``.
        RuntimeError and others: as ``allgather()``.
    """
    output, received = autograd.run(autograd.Alltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combines a tensor of every rank, of which each rank gets some of the rows.

    Args:
        tensor: as for ``allreduce()``, with at least one dimension.
        op: Average or Sum.
        name, compression, process_set, prescale_factor, postscale_factor: as for ``allreduce()``.

    Returns:
        This rank's rows of the result: as many as others have, or one more on the first ranks.
        Differentiable.

    Raises:
        RuntimeError: another ``op``, a tensor without dimensions, or as ``allgather()``.
        ValueError and others: as ``allreduce()``.
    """
    sent, context = compression.compress(tensor)
    scattered = autograd.run(
        autograd.Reducescatter, sent, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(scattered, context)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """``reducescatter()`` of several tensors together; each result may be differentiated alone."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    scattered = autograd.run(
        autograd.GroupedReducescatter,
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        *(sent for sent, _ in pairs),
    )
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(scattered, pairs, strict=True)
    ]


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and waits until all have said so. Meanwhile it gives
    zeros to the others' allreduces, whose averages still divide by all ranks.

    Args:
        device: taken for compatibility; zeros are on the CPU.

    Returns:
        The rank that joined last, the same on all.

    Raises:
        ValueError: an optimizer compresses its gradients by LIGHT_* variables.
        HorovodInternalError: a rank is lost.
    """
    last: int = asynchronous.join_async().wait()
    return last


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the process set have come here. Pending operations go on by
    themselves.

    Raises:
        ValueError: the process set is unknown or without this rank.
        HorovodInternalError: a rank is lost.
    """
    asynchronous.barrier_async(process_set).wait()
