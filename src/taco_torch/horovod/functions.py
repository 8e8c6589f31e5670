"""Parameters, optimizers' states and any objects from one rank to all, or from all to all."""

import importlib
import pickle
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from taco_torch.horovod.asynchronous import allgather_async, broadcast_async_
from taco_torch.horovod.averaging import Wrapped
from taco_torch.horovod.handles import Handle
from taco_torch.horovod.job import the_job
from taco_torch.horovod.process_sets import ProcessSet, global_process_set


@torch.no_grad()
def _begin(tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> Any:
    """Begins to broadcast into the tensor; returns what waits for it."""
    flat = tensor.detach()
    whole = flat if flat.is_contiguous() else flat.contiguous()
    handle: Handle = broadcast_async_(whole, root, name, process_set)

    def finish() -> None:
        handle.wait()
        if whole is not flat:
            flat.copy_(whole)

    return finish


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the root's values, in place.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``:
            tensors of the same shapes and dtypes on all ranks. Those of a mapping match by name.
        root_rank: a global rank of the process set.
        process_set: among which ranks.

    Raises:
        ValueError: ``params`` is something else, or holds what is no tensor.
        RuntimeError and others: as ``broadcast()``.
    """
    finishing = [_begin(tensor, root_rank, name, process_set) for name, tensor in _named(params)]
    for finish in finishing:
        finish()


def _named(params: Any) -> list[tuple[str | None, torch.Tensor]]:
    if isinstance(params, Mapping):
        listed: list[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, str | bytes | torch.Tensor):
        listed = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(
            f"params is a {type(params).__name__}, but must be a state_dict, named_parameters or a "
            "list of tensors"
        )
    for name, tensor in listed:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"params holds {name!r}, a {type(tensor).__name__} and no tensor: send it by "
                "broadcast_object()"
            )
    return listed


@dataclass(frozen=True)
class _Tensor:
    """A tensor of an optimizer's state, which follows by itself."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def fits(self, value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and tuple(value.shape) == self.shape
            and value.dtype == self.dtype
        )


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the state and options of the root's optimizer.

    A state that is still empty is made first, by a step with zeros as gradients that leaves the
    parameters as they are. Options keep their types.

    Args:
        optimizer: a torch optimizer with the same parameters on all ranks, wrapped by
            ``DistributedOptimizer()`` or not.
        root_rank: a global rank of the process set.
        model: taken for compatibility; nothing needs it.
        process_set: among which ranks.

    Raises:
        ValueError: an LBFGS optimizer, whose state is of another form; or the root's optimizer has
            other parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "cannot broadcast the state of torch.optim.LBFGS: send its state_dict() by "
            "broadcast_object()"
        )
    if not optimizer.state_dict()["state"]:
        _make_state(optimizer)
    told = broadcast_object(_described(optimizer), root_rank, process_set=process_set)
    tensors = _take_up(optimizer, told)
    finishing = [_begin(tensor, root_rank, name, process_set) for name, tensor in tensors.items()]
    for finish in finishing:
        finish()


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """In the order in which state_dict() numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


@torch.no_grad()
def _make_state(optimizer: torch.optim.Optimizer) -> None:
    trained = [p for p in _parameters(optimizer) if p.requires_grad]
    kept = [(p, p.detach().clone(), p.grad) for p in trained]
    is_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    decays = [group.get("weight_decay") for group in optimizer.param_groups]
    for parameter in trained:
        zeros = torch.zeros_like(parameter)
        parameter.grad = zeros.to_sparse() if is_sparse else zeros
    for group in optimizer.param_groups:
        if "weight_decay" in group:  # would be a gradient
            group["weight_decay"] = 0.0
    try:
        if isinstance(optimizer, Wrapped):  # others may have a state, and not come here
            optimizer.step_alone()
        else:
            optimizer.step()
    finally:
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            if "weight_decay" in group:
                group["weight_decay"] = decay
        for parameter, value, gradient in kept:
            parameter.copy_(value)
            if gradient is not None:  # else zeros stay, as programs for Horovod expect
                parameter.grad = gradient
    for state in optimizer.state.values():  # bias corrections count from the first true step
        if "step" in state:
            state["step"] = state["step"] * 0
        if "mu_product" in state:  # NAdam's product of no factors
            state["mu_product"] = state["mu_product"] * 0 + 1


def _described(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    options = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    states: dict[int, dict[str, Any]] = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        if parameter in optimizer.state:
            states[number] = {
                name: _Tensor(tuple(value.shape), value.dtype)
                if isinstance(value, torch.Tensor)
                else value
                for name, value in optimizer.state[parameter].items()
            }
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return {"sizes": sizes, "options": options, "states": states}


def _take_up(optimizer: torch.optim.Optimizer, told: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Takes up what the root has told; returns the tensors that are to come, by name."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != told["sizes"]:
        raise ValueError(
            f"the root's optimizer has groups of {told['sizes']} parameters, this one of {sizes}"
        )
    for group, options in zip(optimizer.param_groups, told["options"], strict=True):
        group.update(options)
    tensors: dict[str, torch.Tensor] = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        if number not in told["states"]:
            optimizer.state.pop(parameter, None)
            continue
        own = dict(optimizer.state[parameter]) if parameter in optimizer.state else {}
        taken: dict[str, Any] = {}
        for name, value in told["states"][number].items():
            taken[name] = value
            if isinstance(value, _Tensor):
                known = own.get(name)
                taken[name] = known if value.fits(known) else _room(value)
                tensors[f"optimizer.{number}.{name}"] = taken[name]
        optimizer.state[parameter] = taken
    return tensors


def _room(described: _Tensor) -> torch.Tensor:
    return torch.empty(described.shape, dtype=described.dtype, device="cpu")


def _pickled(obj: Any) -> torch.Tensor:
    """By cloudpickle where it is installed, which takes functions of __main__, too."""
    pickler: Any = pickle
    with suppress(ModuleNotFoundError):
        pickler = importlib.import_module("cloudpickle")
    return torch.frombuffer(bytearray(pickler.dumps(obj)), dtype=torch.uint8)


def _unpickled(data: torch.Tensor) -> Any:
    return pickle.loads(data.numpy().tobytes())


def _size_of(data: torch.Tensor | None) -> torch.Tensor:
    count = 0 if data is None else data.numel()
    return torch.tensor([count], dtype=torch.int64, device="cpu")


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the root's object, by pickle (cloudpickle where it is installed).

    Args:
        obj: the root's counts.
        root_rank: a global rank of the process set.
        name: matches the call among ranks; None: the next number.
        process_set: among which ranks.

    Returns:
        At the root ``obj`` itself, at the others an equal one.
    """
    is_root = the_job().rank == root_rank
    data = _pickled(obj) if is_root else None
    size = _size_of(data)
    broadcast_async_(size, root_rank, name and f"{name}.sz", process_set).wait()
    if data is None:
        data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    broadcast_async_(data, root_rank, name and f"{name}.t", process_set).wait()
    return obj if is_root else _unpickled(data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gives every rank the objects of all, by pickle (cloudpickle where it is installed).

    Args:
        obj: this rank's.
        name: matches the call among ranks; None: the next number.
        process_set: among which ranks.

    Returns:
        Objects in rank order, all of them unpickled.
    """
    data = _pickled(obj)
    sizes = allgather_async(_size_of(data), name and f"{name}.sz", process_set)
    gathered = allgather_async(data, name and f"{name}.t", process_set)
    parts = gathered.wait().split([int(size) for size in sizes.wait()])
    return [_unpickled(part) for part in parts]
