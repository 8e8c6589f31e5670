"""Residuals, what has not been sent yet, in checkpoints and before them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from taco_torch.lightcc import ledger, models
from taco_torch.lightcc.models import Kept, Leg

_RUN_ELEMENTS = 8 << 20  # so many are summed up at once: 32 MiB


def _runs(leg: Leg) -> Iterator[tuple[int, int]]:
    """Parameters to sum up together, as ranges of their numbers."""
    first, elements = 0, 0
    sizes = [leg.elements(name) for name in leg.names]
    for index, size in enumerate(sizes):
        if index > first and elements + size > _RUN_ELEMENTS:
            yield first, index
            first, elements = index, 0
        elements += size
    yield first, len(sizes)


def _owed(leg: Leg, as_saved: bool = False) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Number, name and what all ranks owe of each parameter's gradient, in units of that and at the
    loss's scale. Collective. Of gradients that nobody has applied yet, a checkpoint has nothing."""
    for first, last in _runs(leg):
        names = leg.names[first:last]
        flat = leg.native.owed(first, last, as_saved)
        leg.native.average_exactly(flat).wait()
        parts = flat.split_with_sizes([leg.elements(name) for name in names])
        for index, (name, part) in enumerate(zip(names, parts, strict=True), first):
            yield index, name, leg.part(name, part.mul_(leg.unit(name)))


@torch.no_grad()
def flush(model: torch.nn.Module | None = None) -> None:
    """Adds what has not been sent so far to the gradients, and owes nothing any more.

    Collective. Call it between ``backward()`` and ``optimizer.step()`` (with a GradScaler: before
    ``scaler.unscale_()``, and before clipping): a checkpoint that rank 0 saves after that step
    lacks nothing, whoever loads it. A parameter that has no gradient,
    on one rank or more, keeps what is owed to it. All is added, or, where that raises an error,
    nothing; for a moment there is another copy of the gradients.

    Args:
        model: whose gradients are compressed; None: the only one of this process.

    Raises:
        ValueError: which model is meant is not clear, or its gradients are not compressed.
        RuntimeError: the gradients have been unscaled already.
    """
    kept = models.the(model)
    _check_still_scaled(kept.grad_scaler)
    # All that can fail comes first.
    taken = [
        (leg, index, gradient, owed)
        for leg in kept.legs
        for index, gradient, owed in _what_takes(leg)
    ]
    for leg, index, gradient, owed in taken:
        gradient.add_(owed)
        leg.native.forget(index, index + 1)


def _what_takes(leg: Leg) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Number, gradient, and what all ranks owe, of each parameter that is owed something and has a
    gradient on all ranks. Collective."""
    gradients = [_dense_gradient(leg, name) for name in leg.names]
    takes = torch.tensor(
        [gradient is not None for gradient in gradients], dtype=torch.uint8, device="cpu"
    )
    dist.all_reduce(takes, op=dist.ReduceOp.MIN, group=leg.group)
    everywhere = takes.tolist()
    for index, name, owed in _owed(leg):
        gradient = gradients[index]
        if not everywhere[index] or gradient is None:
            continue
        if gradient.shape != owed.shape:
            raise ValueError(
                f"the gradient of {name} has shape {tuple(gradient.shape)}, but what is owed to "
                f"it has {tuple(owed.shape)}"
            )
        if bool(owed.any()):
            yield index, gradient, owed


def _dense_gradient(leg: Leg, name: str) -> torch.Tensor | None:
    """None: there is none, or it is sparse, and nothing of it is ever owed."""
    gradient = leg.gradient(name)
    return None if gradient is None or gradient.layout != torch.strided else gradient


def _check_still_scaled(scaler: Any) -> None:
    for state in getattr(scaler, "_per_optimizer_states", {}).values():
        if state["stage"] is not torch.amp.grad_scaler.OptState.READY:
            raise RuntimeError(
                "lightcc.flush() adds to scaled gradients: call it before scaler.unscale_() and "
                "scaler.step()"
            )


def state_dict(model: torch.nn.Module | None = None) -> dict[str, Any]:
    """The residuals that have not been sent so far, for a checkpoint. Collective.

    Returns a dict that torch.save and torch.distributed.checkpoint can save:

    * ``residuals``: by parameter name a float32 tensor of its shape: what all hosts together owe,
      in units of the averaged, unscaled gradient; the same on all ranks. Under FSDP2 a DTensor,
      sharded as the parameter is; and empty where nothing is ever kept (no replicas).
    * ``step``: an int64 tensor, how many backward passes there were.
    * ``exact``: of this rank alone, what it needs to go on bit for bit if world and buckets are the
      same then. Holds one shard of the gradients.

    Raises:
        ValueError: as ``flush()``.
    """
    kept = models.the(model)
    residuals: dict[str, torch.Tensor] = {}
    buckets: dict[str, Any] = {}
    for leg in kept.legs:
        scale = leg.native.scale
        for _, name, owed in _owed(leg, as_saved=True):
            residuals[name] = leg.saved(name, owed / scale)
        for begin, _, layout, residual, momentum in leg.native.save():
            buckets[str(len(buckets))] = {
                "from": torch.tensor(begin, dtype=torch.int64, device="cpu"),
                "parameters": [leg.names[index] for index in layout],
                "residual": residual,
                "momentum": momentum,
            }
    # Without buckets there is nothing exact to say, and a checkpoint of any world fits this dict.
    exact: dict[str, Any] = {"groups": kept.layout, "buckets": buckets}
    arrangements = [leg.arrangement() for leg in kept.legs]  # by all ranks, whatever they have kept
    strides = {name: stride for leg in kept.legs for name, stride in leg.strides().items()}
    if arrangements and arrangements[0]:
        exact["arrangement"] = arrangements[0]
    if strides:
        exact["strides"] = strides
    steps = [leg.native.step + 1 for leg in kept.legs]
    return {
        "residuals": residuals,
        "step": torch.tensor(max(steps, default=0), dtype=torch.int64, device="cpu"),
        "exact": {kept.place: exact} if buckets else {},
    }


def load_state_dict(state: Mapping[str, Any], model: torch.nn.Module | None = None) -> None:
    """Takes up what a checkpoint says has not been sent. Collective; call it before training.

    Where every rank has its own part of ``exact`` and the ranks stand on hosts as they did, each
    bucket that is arranged as it was goes on bit for bit. What belongs to others is shared out
    among the ranks, whatever their number, and goes out with the gradients of the next step.

    Args:
        state: of ``state_dict()``; that of another rank will do, too, without ``exact``. Residuals
            may be whole tensors, or, under FSDP2, DTensors sharded as the parameters are.
        model: as in ``flush()``.

    Raises:
        ValueError: this is no such state; or it belongs to another model: the first parameters are
            named that only one of them has, or whose shapes differ. Nothing has changed then.
    """
    kept = models.the(model)
    _check_is_state(state)
    residuals = {models.plain_name(name): value for name, value in state["residuals"].items()}
    _check_parameters(residuals, kept)
    exact = state.get("exact", {}).get(kept.place)
    if exact is not None and not _fits(exact, kept):
        exact = None
    everywhere = torch.tensor([int(exact is not None)], dtype=torch.int64, device="cpu")
    for group in kept.groups:
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN, group=group)
    loaded = [
        {name: leg.loaded(name, residuals[name]) for name in leg.names if residuals}
        for leg in kept.legs
    ]
    for leg, averages in zip(kept.legs, loaded, strict=True):
        if exact is not None and bool(everywhere) and "arrangement" in exact:
            leg.arrange(exact["arrangement"])
        buckets = _buckets_of(leg, exact) if exact is not None and bool(everywhere) else []
        leg.native.load(buckets, int(state["step"]) - 1)
        for index, (name, average) in enumerate(averages.items()):
            leg.native.add_average(index, average / leg.unit(name))
        ledger.loaded(leg.native)


def _fits(exact: Mapping[str, Any], kept: Kept) -> bool:
    """Whether the ranks stand on hosts as they did, and the elements of parameters lie as they
    did."""
    strides = {name: stride for leg in kept.legs for name, stride in leg.strides().items()}
    saved = {name: [int(n) for n in stride] for name, stride in exact.get("strides", {}).items()}
    return list(exact["groups"]) == kept.layout and saved == strides


def _buckets_of(
    leg: Leg, exact: Mapping[str, Any]
) -> list[tuple[int, int, list[int], torch.Tensor, torch.Tensor]]:
    index_of = {name: index for index, name in enumerate(leg.names)}
    buckets = []
    for bucket in exact["buckets"].values():
        names = [models.plain_name(name) for name in bucket["parameters"]]
        if not all(name in index_of for name in names):
            continue  # of another leg
        residual, momentum = _values(bucket["residual"]), _values(bucket["momentum"])
        layout = [index_of[name] for name in names]
        buckets.append((int(bucket["from"]), residual.numel(), layout, residual, momentum))
    return buckets


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().view(-1)


def _check_is_state(state: Any) -> None:
    if not isinstance(state, Mapping):
        raise ValueError(
            f"this is no state of lightcc.state_dict(): it is a {type(state).__name__}"
        )
    if not isinstance(state.get("residuals"), Mapping) or state.get("step") is None:
        held = ", ".join(str(key) for key in list(state)[:5]) or "nothing"
        raise ValueError(
            f"this is no state of lightcc.state_dict(): it has {held}, but must have residuals by "
            "parameter and a step"
        )
    for name, residual in state["residuals"].items():
        if not isinstance(residual, torch.Tensor):
            raise ValueError(f"the residual of {name} is a {type(residual).__name__}, not a tensor")


def _check_parameters(residuals: Mapping[str, torch.Tensor], kept: Kept) -> None:
    if not kept.legs:
        _check_nothing_owed(residuals)
    if not kept.legs or not residuals:  # without replicas nothing is owed
        return
    ours = {name: leg.shape(name) for leg in kept.legs for name in leg.names}
    problems = [f"{name} is only in the model" for name in ours if name not in residuals]
    problems += [f"{name} is only in the state" for name in residuals if name not in ours]
    problems += [
        f"{name} has shape {tuple(ours[name])} in the model, {tuple(value.shape)} in the state"
        for name, value in residuals.items()
        if name in ours and value.shape != ours[name]
    ]
    if problems:
        shown = "; ".join(problems[:3])
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"this state of lightcc belongs to another model: {shown}{more}")


def _check_nothing_owed(residuals: Mapping[str, torch.Tensor]) -> None:
    owed = [name for name, value in residuals.items() if bool((value != 0).any())]
    if owed:
        raise ValueError(
            f"this state of lightcc says that {owed[0]} and {len(owed) - 1} more parameters are "
            "owed gradients, which a model of fully_shard without replicas cannot send later: call "
            "lightcc.flush() before the checkpoint is saved"
        )
