"""The gradients of the operations, as Horovod defines them: averaged over the ranks, so that losses
of all ranks count together as one."""

from typing import Any

import torch

from taco_torch.horovod import asynchronous, operations
from taco_torch.horovod.job import the_job
from taco_torch.horovod.process_sets import ProcessSet
from taco_torch.horovod.reduce_ops import Average, Sum


def run(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Calls ``function.apply``, whose arguments torch gives no types."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


class Allreduce(torch.autograd.Function):
    """Its gradient is the gradient's allreduce, with the same arguments."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> Any:
        ctx.arguments = {
            "op": op,
            "prescale_factor": prescale,
            "postscale_factor": postscale,
            "process_set": process_set,
        }
        return asynchronous.allreduce_async(tensor, name=name, **ctx.arguments).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduced = operations.allreduce(gradients[0].contiguous(), **ctx.arguments)
        return reduced, None, None, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    """As Allreduce, of several tensors. Outputs whose gradients are not asked for count as zeros:
    each of them may be differentiated alone."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.arguments = {
            "op": op,
            "prescale_factor": prescale,
            "postscale_factor": postscale,
            "process_set": process_set,
        }
        handle = asynchronous.grouped_allreduce_async(list(tensors), name=name, **ctx.arguments)
        return tuple(handle.wait())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        given = [gradient.contiguous() for gradient in gradients]
        reduced = operations.grouped_allreduce(given, **ctx.arguments)
        return (None, None, None, None, None, *reduced)


def _own_rows(gradient: torch.Tensor, rows: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """This rank's part of a gradient of what was gathered; ``rows`` by rank."""
    rank = process_set.rank() or 0
    return gradient.narrow(0, int(rows[:rank].sum()), int(rows[rank]))


def _one(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.int64, device="cpu")


class Allgather(torch.autograd.Function):
    """Its gradient is this rank's part of the averaged gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Any:
        handle = asynchronous.allgather_async(tensor, name, process_set)
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return handle.wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rows = asynchronous.allgather_async(_one(ctx.rows), None, ctx.process_set)
        averaged = operations.allreduce(
            gradients[0].contiguous(), op=Average, process_set=ctx.process_set
        )
        return _own_rows(averaged, rows.wait(), ctx.process_set), None, None


class GroupedAllgather(torch.autograd.Function):
    """As Allgather, of several tensors; each output may be differentiated alone."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        handle = asynchronous.grouped_allgather_async(tensors, name, process_set)
        ctx.rows, ctx.process_set = [tensor.shape[0] for tensor in tensors], process_set
        return tuple(handle.wait())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        own = torch.tensor([ctx.rows], dtype=torch.int64, device="cpu")
        told = asynchronous.allgather_async(own, None, ctx.process_set)
        averaged = operations.grouped_allreduce(
            [gradient.contiguous() for gradient in gradients],
            op=Average,
            process_set=ctx.process_set,
        )
        rows = told.wait()
        parts = [
            _own_rows(gradient, rows[:, index], ctx.process_set)
            for index, gradient in enumerate(averaged)
        ]
        return (None, None, *parts)


class Broadcast(torch.autograd.Function):
    """Its gradient is the averaged gradient at the root, and 0 at the others."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return asynchronous.broadcast_async(tensor, root_rank, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        averaged = operations.allreduce(
            gradients[0].contiguous(), op=Average, process_set=ctx.process_set
        )
        if the_job().rank != ctx.root_rank:
            averaged = averaged * 0
        return averaged, None, None, None


class Alltoall(torch.autograd.Function):
    """Its gradient is an alltoall back, with the received splits."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        handle = asynchronous.alltoall_async(tensor, splits, name, process_set)
        output, received = handle.wait()
        ctx.received, ctx.process_set, ctx.rows = received, process_set, tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        back, _ = operations.alltoall(
            gradients[0].contiguous(), splits=ctx.received, process_set=ctx.process_set
        )
        unsent = ctx.rows - back.shape[0]
        if unsent:  # rows that splits had left out
            back = torch.cat([back, back.new_zeros(unsent, *back.shape[1:])])
        return back, None, None, None


def _scattered_factor(op: int, prescale: float, postscale: float, size: int) -> float:
    return prescale * postscale * (size if op == Sum else 1)


class Reducescatter(torch.autograd.Function):
    """Its gradient is the gathered gradient, times the size of the set for Sum, times the
    factors."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
    ) -> Any:
        handle = asynchronous.reducescatter_async(
            tensor, name, op, process_set, prescale, postscale
        )
        ctx.factor = _scattered_factor(op, prescale, postscale, process_set.size() or 1)
        ctx.process_set = process_set
        return handle.wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        scaled = (gradients[0] * ctx.factor).contiguous()
        gathered = operations.allgather(scaled, process_set=ctx.process_set)
        return gathered, None, None, None, None, None


class GroupedReducescatter(torch.autograd.Function):
    """As Reducescatter, of several tensors; each output may be differentiated alone."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
        *tensors: torch.Tensor,
    ) -> Any:
        handle = asynchronous.grouped_reducescatter_async(
            tensors, name, op, process_set, prescale, postscale
        )
        ctx.factor = _scattered_factor(op, prescale, postscale, process_set.size() or 1)
        ctx.process_set = process_set
        return tuple(handle.wait())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        scaled = [(gradient * ctx.factor).contiguous() for gradient in gradients]
        gathered = operations.grouped_allgather(scaled, process_set=ctx.process_set)
        return (None, None, None, None, None, *gathered)
