"""An optimizer's gradients, averaged by named operations while the backward pass goes on."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from taco_torch.horovod.asynchronous import (
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from taco_torch.horovod.compression import Compressor
from taco_torch.horovod.process_sets import ProcessSet
from taco_torch.horovod.reduce_ops import Average, ReduceOp


class Reducer(Protocol):
    """Reduces the gradients of one optimizer, which become ready in any order."""

    def begin(self, parameter: torch.Tensor) -> None:
        """The parameter's gradient is ready."""

    def finish(self, parameters: Sequence[torch.Tensor]) -> None:
        """Waits until the gradients of all these are reduced; those that are not ready yet are
        reduced as they are, and as zeros where there is none. Nothing is pending afterwards,
        whatever it raises."""

    def forget(self) -> None:
        """Nothing is pending any more."""

    def is_pending(self) -> bool: ...


class NamedReducer:
    """Each gradient is an operation under its parameter's name, or part of one for a group."""

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        groups: Sequence[Sequence[torch.Tensor]],
        compression: type[Compressor],
        op: ReduceOp,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._names = names
        self._group_of = {p: group for group in map(tuple, groups) for p in group}
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._how: dict[str, Any] = {"op": op, "process_set": process_set}
        # The library divides by the size: so the factor is taken out before, and put back after.
        self._factors: dict[str, Any] = {}
        if op is Average and predivide != 1.0:
            self._factors = {"prescale_factor": 1.0 / predivide, "postscale_factor": predivide}
        self._ready: set[torch.Tensor] = set()
        self._arrived: Counter[torch.Tensor] = Counter()  # how many of a group, by its first
        self._finishing: dict[torch.Tensor, Callable[[], None] | None] = {}

    def is_pending(self) -> bool:
        return bool(self._ready)

    def forget(self) -> None:
        self._ready.clear()
        self._arrived.clear()
        self._finishing.clear()

    def begin(self, parameter: torch.Tensor) -> None:
        group = self._group_of.get(parameter, (parameter,))
        if parameter not in self._ready:
            self._ready.add(parameter)
            self._arrived[group[0]] += 1
        if self._arrived[group[0]] == len(group):
            self._start(group)

    def finish(self, parameters: Sequence[torch.Tensor]) -> None:
        try:
            for parameter in parameters:
                if parameter not in self._finishing:
                    self._start(self._group_of.get(parameter, (parameter,)))
            for finish in self._finishing.values():
                if finish is not None:
                    finish()
        finally:
            self.forget()

    @torch.no_grad()
    def _start(self, group: tuple[torch.Tensor, ...]) -> None:
        for parameter in group:
            if parameter.grad is None:  # others may have one
                parameter.grad = torch.zeros_like(parameter)
        self._finishing.update(dict.fromkeys(group))
        dense = []
        for parameter in group:
            if self._sparse_as_dense or not _gradient(parameter).is_sparse:
                dense.append(parameter)
            else:
                self._finishing[parameter] = self._start_sparse(parameter)
        if dense:
            self._finishing[dense[0]] = self._start_dense(dense, is_group=len(group) > 1)

    def _start_sparse(self, parameter: torch.Tensor) -> Callable[[], None]:
        gradient = _gradient(parameter)
        wait = sparse_allreduce_async(gradient, self._names[parameter], **self._how)

        def finish() -> None:
            parameter.grad = wait()

        return finish

    def _start_dense(self, parameters: list[torch.Tensor], is_group: bool) -> Callable[[], None]:
        gradients = [_gradient(p) for p in parameters]
        whole = [g.to_dense() if g.is_sparse else g.contiguous() for g in gradients]
        pairs = [self._compression.compress(tensor) for tensor in whole]
        sent = [tensor for tensor, _ in pairs]
        name = self._names[parameters[0]]
        if is_group:
            handle = grouped_allreduce_async_(sent, name=name, **self._factors, **self._how)
        else:
            handle = allreduce_async_(sent[0], name=name, **self._factors, **self._how)

        @torch.no_grad()
        def finish() -> None:
            handle.wait()
            for parameter, gradient, (reduced, context) in zip(
                parameters, gradients, pairs, strict=True
            ):
                put_back(parameter, gradient, self._compression.decompress(reduced, context))

        return finish


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def put_back(parameter: torch.Tensor, gradient: torch.Tensor, reduced: torch.Tensor) -> None:
    """Makes ``reduced`` the parameter's gradient, in the memory and layout of ``gradient``."""
    if gradient.is_sparse:
        parameter.grad = reduced.to_sparse()
    elif reduced is not gradient:
        gradient.copy_(reduced)
