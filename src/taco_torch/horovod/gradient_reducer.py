"""An optimizer's gradients, averaged by named operations while the backward pass goes on."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from taco_torch.errors import MismatchError
from taco_torch.horovod.asynchronous import (
    SparseReduction,
    allreduce_async_,
    check_sparse,
    grouped_allreduce_async_,
)
from taco_torch.horovod.compression import Compressor
from taco_torch.horovod.job import the_job
from taco_torch.horovod.process_sets import ProcessSet
from taco_torch.horovod.reduce_ops import Average, ReduceOp, Sum

_NEVER = ("", 0)


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

    def end(self) -> None:
        """Nothing is pending, nor reduced from now on."""

    def is_pending(self) -> bool: ...


class NamedReducer:
    """Each gradient is an operation under its parameter's name, or part of one for a group.

    A rank that has no gradient of a parameter has to know whether the others' is sparse, which
    takes other operations. So with the first gradients of a job ranks agree on that, and again with
    the first after a join(), since a rank that had joined has agreed to nothing. A parameter that
    nobody had used by then, and that is sparse somewhere and missing elsewhere, is an error on all
    ranks, after which they agree again.
    """

    def __init__(
        self,
        names: dict[torch.Tensor, str],
        groups: Sequence[Sequence[torch.Tensor]],
        compression: type[Compressor] | Compressor,
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
        self._going_on: list[Callable[[], None]] = []  # what comes before any of these:
        self._finishing: dict[torch.Tensor, Callable[[], None] | None] = {}
        self._sparse_dims: dict[torch.Tensor, int] = {}  # of gradients that are known to be sparse
        self._known_to_all: set[torch.Tensor] = set()  # those of which all ranks know it
        self._agreed_in = _NEVER  # the job's stage

    def is_pending(self) -> bool:
        return bool(self._ready)

    def forget(self) -> None:
        self._ready.clear()
        self._arrived.clear()
        self._going_on.clear()
        self._finishing.clear()

    def end(self) -> None:
        self.forget()

    def begin(self, parameter: torch.Tensor) -> None:
        group = self._group_of.get(parameter, (parameter,))
        if parameter not in self._ready:
            self._ready.add(parameter)
            self._arrived[group[0]] += 1
        if self._arrived[group[0]] == len(group):
            self._start(group)

    def finish(self, parameters: Sequence[torch.Tensor]) -> None:
        newly_known: set[torch.Tensor] = set()
        try:
            if self._agreed_in != the_job().stage:
                newly_known = self._agree(parameters)
            for parameter in parameters:
                if parameter not in self._finishing:
                    self._start(self._group_of.get(parameter, (parameter,)))
            _call_all(self._going_on)
            _call_all([each for each in self._finishing.values() if each is not None])
        except MismatchError:  # all ranks have it, and agree again
            self._agreed_in = _NEVER
            raise
        finally:
            self._known_to_all |= newly_known
            self.forget()

    def _agree(self, parameters: Sequence[torch.Tensor]) -> set[torch.Tensor]:
        """Tells the others whose gradients are sparse here; those that are sparse anywhere, which
        counts from the next step on: in this one they may be under way."""
        self._agreed_in = the_job().stage
        self._known_to_all.clear()
        if self._sparse_as_dense or not parameters:
            return set()
        dims = [self._sparse_dim(parameter) for parameter in parameters]
        told = torch.tensor(
            [[int(each > 0) for each in dims], dims], dtype=torch.int32, device="cpu"
        )
        first = next(iter(self._names.values()))
        process_set = self._how["process_set"]
        allreduce_async_(told, name=f"layouts of {first}", op=Sum, process_set=process_set).wait()
        for parameter, ranks, total in zip(parameters, *told.tolist(), strict=True):
            if ranks:
                self._sparse_dims[parameter] = total // ranks
        return {p for p, ranks in zip(parameters, told[0].tolist(), strict=True) if ranks}

    def _sparse_dim(self, parameter: torch.Tensor) -> int:
        """How many dimensions its gradient's indices have, as far as this rank knows; 0: dense."""
        gradient = parameter.grad
        if gradient is None:
            return self._sparse_dims.get(parameter, 0)
        return gradient.sparse_dim() if gradient.is_sparse else 0

    def _nothing(self, parameter: torch.Tensor) -> torch.Tensor:
        """The gradient of a parameter that has none here; others may have one."""
        dims = self._sparse_dims.get(parameter)
        if dims is None or self._sparse_as_dense:
            return torch.zeros_like(parameter)
        device = parameter.device
        places = torch.empty((dims, 0), dtype=torch.int64, device=device)
        values = torch.empty((0, *parameter.shape[dims:]), dtype=parameter.dtype, device=device)
        return torch.sparse_coo_tensor(places, values, parameter.shape, check_invariants=False)

    @torch.no_grad()
    def _start(self, group: tuple[torch.Tensor, ...]) -> None:
        dense, sparse = [], []
        known = self._known_to_all if self._agreed_in == the_job().stage else set()
        for parameter in group:
            if parameter.grad is None:
                parameter.grad = self._nothing(parameter)
            if parameter.grad.is_sparse and not self._sparse_as_dense:
                self._sparse_dims[parameter] = parameter.grad.sparse_dim()
                sparse.append(parameter)
            elif parameter in known:  # the others gather it
                sparse.append(parameter)
            else:
                dense.append(parameter)
        self._finishing.update(dict.fromkeys(group))
        label = "grouped_allreduce" if len(group) > 1 else "allreduce"
        for parameter in sparse:
            # The first operation of a group is the one that has its name.
            is_first = parameter is group[0] and not dense
            is_known = parameter in known
            self._start_sparse(parameter, label if is_first and not is_known else None)
        if dense:
            name = self._names[group[0]]
            self._finishing[dense[0]] = self._start_dense(dense, name, is_group=len(group) > 1)

    def _start_sparse(self, parameter: torch.Tensor, dense_label: str | None) -> None:
        name = self._names[parameter]
        op, process_set = self._how["op"], self._how["process_set"]
        check_sparse(op)
        own = _gradient(parameter)
        sent = own if own.is_sparse else own.to_sparse(self._sparse_dims[parameter])
        reduction = SparseReduction(sent, name, op, process_set, dense_label)

        @torch.no_grad()
        def finish() -> None:
            reduced = reduction.wait()
            if own.is_sparse:
                parameter.grad = reduced
            else:  # a layout that this rank's optimizer expects
                own.copy_(reduced.to_dense())

        self._going_on.append(reduction.go_on)
        self._finishing[parameter] = finish

    def _start_dense(
        self, parameters: list[torch.Tensor], name: str, is_group: bool
    ) -> Callable[[], None]:
        gradients = [_gradient(p) for p in parameters]
        whole = [g.to_dense() if g.is_sparse else g.contiguous() for g in gradients]
        pairs = [self._compression.compress(tensor) for tensor in whole]
        sent = [tensor for tensor, _ in pairs]
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


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    """All of them, whatever one raises, and then the first error: what others wait for is done."""
    failure: RuntimeError | None = None
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def put_back(parameter: torch.Tensor, gradient: torch.Tensor, reduced: torch.Tensor) -> None:
    """Makes ``reduced`` the parameter's gradient, in the memory and layout of ``gradient``."""
    if gradient.is_sparse:
        parameter.grad = reduced.to_sparse()
    elif reduced is not gradient:
        gradient.copy_(reduced)
