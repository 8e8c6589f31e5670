"""Gradients through the operations."""

from __future__ import annotations

import torch
from spawn_ranks import Ranks

import taco_torch.horovod as hvd


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64).mul_(1 + hvd.rank()).requires_grad_()


def weight(tensor: torch.Tensor, rank: int | None = None) -> torch.Tensor:
    """Factors for the output, other on each rank and in each place."""
    own = hvd.rank() if rank is None else rank
    return torch.arange(tensor.numel(), dtype=torch.float64).view(tensor.shape) + 10 * own


def gradient(output: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    (output * weight(output)).sum().backward()
    assert of.grad is not None
    return of.grad


def everyone(output: torch.Tensor) -> torch.Tensor:
    return torch.stack([weight(output, rank) for rank in range(hvd.size())])


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.allclose(found, wanted.to(found.dtype)), (found, wanted)


def through_allreduce() -> None:
    for op, factors in ((hvd.Average, (1.0, 1.0)), (hvd.Sum, (0.5, 3.0))):
        tensor = leaf(2, 3)
        output = hvd.allreduce(
            tensor, op=op, prescale_factor=factors[0], postscale_factor=factors[1]
        )
        combined = everyone(output).mean(0) if op == hvd.Average else everyone(output).sum(0)
        close(gradient(output, tensor), combined * factors[0] * factors[1])


def test_allreduce(hvd3: Ranks) -> None:
    hvd3.run(through_allreduce)


def through_allgather() -> None:
    rank = hvd.rank()
    tensor = leaf(rank + 1, 2)
    output = hvd.allgather(tensor)
    before = sum(range(rank + 1))
    close(gradient(output, tensor), everyone(output).mean(0)[before : before + rank + 1])


def test_allgather_of_different_rows(hvd3: Ranks) -> None:
    hvd3.run(through_allgather)


def through_broadcast() -> None:
    tensor = leaf(4)
    output = hvd.broadcast(tensor, root_rank=1)
    wanted = everyone(output).mean(0) if hvd.rank() == 1 else torch.zeros(4)
    close(gradient(output, tensor), wanted)


def test_broadcast(hvd3: Ranks) -> None:
    hvd3.run(through_broadcast)


def through_alltoall() -> None:
    rank, size = hvd.rank(), hvd.size()
    tensor = leaf(size * (rank + 1), 1)
    output, received = hvd.alltoall(tensor, [rank + 1] * size)
    assert not received.requires_grad
    wanted = []
    for to in range(size):  # rank r gives every rank r + 1 rows
        there = torch.arange(size * (size + 1) / 2, dtype=torch.float64) + 10 * to
        start = sum(r + 1 for r in range(rank))
        wanted.append(there[start : start + rank + 1])
    close(gradient(output, tensor), torch.cat(wanted).view(-1, 1))
    rest = leaf(5)
    output, _ = hvd.alltoall(rest, [1] * size)
    assert gradient(output, rest)[size:].tolist() == [0.0] * (5 - size)


def test_alltoall(hvd3: Ranks) -> None:
    hvd3.run(through_alltoall)


def through_reducescatter() -> None:
    size = hvd.size()
    for op in (hvd.Sum, hvd.Average):
        tensor = leaf(size + 1, 2)
        output = hvd.reducescatter(tensor, op=op, prescale_factor=0.5, postscale_factor=4.0)
        parts = []
        for rank in range(size):
            rows = 2 if rank == 0 else 1
            parts.append(torch.arange(rows * 2, dtype=torch.float64).view(rows, 2) + 10 * rank)
        factor = 2.0 * (size if op == hvd.Sum else 1)
        close(gradient(output, tensor), torch.cat(parts) * factor)


def test_reducescatter(hvd3: Ranks) -> None:
    hvd3.run(through_reducescatter)


def through_groups() -> None:
    size = hvd.size()
    tensors = [leaf(2), leaf(3)]
    for output, tensor in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), tensors, strict=True):
        close(gradient(output, tensor), everyone(output).sum(0))
        tensor.grad = None
    tensors = [leaf(2), leaf(3)]
    for output, tensor in zip(hvd.grouped_allgather(tensors), tensors, strict=True):
        rows = tensor.shape[0]
        own = slice(hvd.rank() * rows, (hvd.rank() + 1) * rows)
        close(gradient(output, tensor), everyone(output).mean(0)[own])
    tensors = [leaf(size), leaf(size, 2)]
    outputs = hvd.grouped_reducescatter(tensors, op=hvd.Sum)
    for output, tensor in zip(outputs, tensors, strict=True):
        wanted = torch.cat([weight(output, rank) for rank in range(size)]) * size
        close(gradient(output, tensor), wanted)


def test_each_output_of_a_group_has_a_backward_of_its_own(hvd3: Ranks) -> None:
    hvd3.run(through_groups)


def within_a_set() -> None:
    pair = hvd.add_process_set([2, 0])
    if pair.included():
        tensor = leaf(2)
        output = hvd.broadcast(tensor, root_rank=2, process_set=pair)
        averaged = torch.stack([weight(output, rank) for rank in (0, 2)]).mean(0)
        close(gradient(output, tensor), averaged if hvd.rank() == 2 else torch.zeros(2))
        tensor = leaf(1)
        output = hvd.allgather(tensor, process_set=pair)
        averaged = torch.stack([weight(output, rank) for rank in (0, 2)]).mean(0)
        close(gradient(output, tensor), averaged[pair.rank()].view(1))
    hvd.remove_process_set(pair)


def test_gradients_stay_within_a_process_set(hvd3: Ranks) -> None:
    hvd3.run(within_a_set)


def twice() -> None:
    tensor = leaf(3)
    output = hvd.allreduce(tensor * tensor, op=hvd.Sum)
    (first,) = torch.autograd.grad(output.sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), tensor)
    close(second, torch.full((3,), 2.0 * hvd.size()))


def test_a_gradient_of_a_gradient(hvd3: Ranks) -> None:
    hvd3.run(twice)
