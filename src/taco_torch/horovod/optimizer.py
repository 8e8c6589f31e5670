"""``DistributedOptimizer()``: an optimizer whose steps use the gradients of all ranks."""

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

from taco_torch.horovod import compressed_reducer, unnamed
from taco_torch.horovod.averaging import AdasumDeltas, Averaging, Wrapped, check_passes, take_over
from taco_torch.horovod.compressed_reducer import CompressedReducer
from taco_torch.horovod.compression import Compression, Compressor, LightCC, check_compressor
from taco_torch.horovod.gradient_reducer import NamedReducer, Reducer
from taco_torch.horovod.process_sets import ProcessSet, global_process_set
from taco_torch.horovod.reduce_ops import Adasum, Average, ReduceOp, known

Groups = int | Sequence[Sequence[torch.Tensor]]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] | Compressor | LightCC = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer like the given one, of a subclass of its class, that reduces gradients
    over the ranks before each step, while the backward pass goes on.

    Where ``Compression.lightcc()`` or a LIGHT_* variable asks for it, float32 gradients are
    compressed between hosts (docs/lightcc.md); then they go in buckets, and groups and the
    predivide factor say nothing.
    Called again for the same parameters, as notebooks do, it replaces what it returned before,
    except where this rank is alone in the process set, or outside.

    Args:
        optimizer: any of torch's kind; shares its state and parameters with the one returned.
        named_parameters: names and parameters of the optimizer, as ``model.named_parameters()``;
            names match gradients among ranks. None: they are numbered.
        compression: what is sent of a gradient.
        backward_passes_per_step: so many passes add up before gradients are reduced.
        op: Average, Sum, Adasum (combines what steps have changed) or another.
        gradient_predivide_factor: Average divides by it before the sum, and by the rest after.
        num_groups: replaced by ``groups``.
        groups: into how many groups gradients are put that are reduced together; or lists of
            parameters.
        sparse_as_dense: sparse gradients are reduced as dense ones; else indices and values are
            gathered.
        process_set: the ranks; others step alone.

    Raises:
        TypeError: ``compression`` is none.
        ValueError: names are missing, there twice or not in pairs; groups are none; the factor is
            not for this ``op``; the optimizer is wrapped already; or gradients are to be
            compressed, which these arguments do not go with.
        NotInitializedError: ``init()`` has not been called; found after these.
    """
    check_compressor(compression)
    reduction = _checked(optimizer, op, gradient_predivide_factor)
    names = _names(optimizer, named_parameters)
    listed = _grouped(names, _either(groups, num_groups))
    check_passes(backward_passes_per_step)
    alone = _is_alone(process_set)
    combines_deltas = reduction is Adasum and not alone
    made = _subclassed(optimizer, AdasumDeltas if combines_deltas else Averaging)
    made.op, made.process_set = reduction, process_set
    made._parameter_names = names
    made.backward_passes_per_step = backward_passes_per_step
    options = None if alone else compressed_reducer.asked_for(compression)
    if options is not None:
        compressed_reducer.check_possible(compression, reduction, process_set)
    named_as = Compression.none if isinstance(compression, LightCC) else compression
    reducer: Reducer | None = None
    if not alone and not combines_deltas:
        how = (gradient_predivide_factor, sparse_as_dense, process_set)
        reducer = named = NamedReducer(names, listed, named_as, reduction, *how)
        if options is not None:
            reducer = CompressedReducer(names, named, options, reduction, sparse_as_dense)
    take_over(made, names, reduces=not alone)
    if combines_deltas:
        made._compression = named_as
    else:
        made.listen(reducer)
    return made


def _checked(optimizer: torch.optim.Optimizer, op: int, predivide: float) -> ReduceOp:
    if isinstance(optimizer, Wrapped):
        raise ValueError("the optimizer has been made by DistributedOptimizer() already")
    reduction = known(op)
    if predivide != 1.0 and reduction is not Average:
        raise ValueError(
            f"gradient_predivide_factor is for op=Average, which op={reduction.name} is not"
        )
    return reduction


def _is_alone(process_set: ProcessSet) -> bool:
    """Whether this rank steps by itself. In an elastic job others may come."""
    included = process_set.included()
    if included is None:
        raise ValueError(f"the process set {process_set.ranks} is not registered")
    if not included:
        return True
    return process_set.size() == 1 and os.environ.get("HOROVOD_ELASTIC") != "1"


def _subclassed(optimizer: torch.optim.Optimizer, kind: type[Wrapped]) -> Any:
    """The optimizer as one of a subclass, without a second construction, for which its class might
    want arguments. A step that a scheduler has wrapped is the old object's."""
    own = type(optimizer)

    def step_alone(self: Any, closure: Any = None) -> Any:
        return own.step(self) if closure is None else own.step(self, closure)

    members = {"step_alone": step_alone, "__doc__": own.__doc__}
    made_class: Any = type(own.__name__, (kind, own), members)
    made: Any = made_class.__new__(made_class)
    vars(made).update({name: value for name, value in vars(optimizer).items() if name != "step"})
    return made


def _names(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """Names of the optimizer's parameters, in their order."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if given is None:
        own = unnamed.number_of(parameters)
        return {p: f"optimizer.{own}.{number}" for number, p in enumerate(parameters)}
    pairs: list[Any] = list(given)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    twice = sorted(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
    if twice:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            f"{', '.join(twice)}"
        )
    named = {parameter: str(name) for name, parameter in pairs}
    missing = [number for number, p in enumerate(parameters) if p not in named]
    if missing:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named: of "
            f"the optimizer's, numbers {', '.join(map(str, missing))}"
        )
    return {p: named[p] for p in parameters}


def _either(groups: Groups | None, num_groups: int) -> Groups | None:
    if num_groups:
        warnings.warn(
            "the argument num_groups has been replaced by groups", DeprecationWarning, stacklevel=3
        )
    return num_groups if groups is None else groups


def _grouped(names: dict[torch.Tensor, str], groups: Groups | None) -> list[list[torch.Tensor]]:
    """Parameters that are reduced together."""
    trained = [p for p in names if p.requires_grad]
    if groups is None or (isinstance(groups, int) and groups == 0):
        return []
    if isinstance(groups, int) and groups > 0:
        parts = min(groups, len(trained))
        ends = [len(trained) * number // parts for number in range(parts + 1)] if parts else [0]
        return [trained[first:end] for first, end in pairwise(ends)]
    if not isinstance(groups, list | tuple):
        raise ValueError(
            "groups should be a non-negative integer or a list of list of torch.Tensor."
        )
    seen: set[int] = set()
    for parameter in (p for group in groups for p in group):
        if not isinstance(parameter, torch.Tensor):
            raise ValueError("groups must consist of torch.Tensor.")
        if id(parameter) in seen:
            raise ValueError("A parameter can only appear once in groups.")
        seen.add(id(parameter))
    known_ones = set(trained)
    kept = [[p for p in group if p in known_ones] for group in groups]
    return [group for group in kept if group]
