"""What has not been sent yet, in checkpoints and before them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taco_torch.lightcc import models
from taco_torch.lightcc.models import Compressed

_RUN_ELEMENTS = 8 << 20  # so many are summed up at once: 32 MiB


def _runs(compressed: Compressed) -> Iterator[tuple[int, int]]:
    """Parameters to sum up together, as ranges of their numbers."""
    first, elements = 0, 0
    sizes = [parameter.numel() for parameter in compressed.parameters.values()]
    for index, size in enumerate(sizes):
        if index > first and elements + size > _RUN_ELEMENTS:
            yield first, index
            first, elements = index, 0
        elements += size
    yield first, len(sizes)


def _averages(compressed: Compressed) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Number, name and what all ranks owe of each parameter, as an average and flat. Collective."""
    names = list(compressed.parameters)
    for first, last in _runs(compressed):
        flat = compressed.native.owed(first, last)
        compressed.native.average_exactly(flat).wait()
        sizes = [compressed.parameters[name].numel() for name in names[first:last]]
        for index, part in enumerate(flat.split_with_sizes(sizes), first):
            yield index, names[index], part


@torch.no_grad()
def flush(model: DistributedDataParallel | None = None) -> None:
    """Adds what has not been sent so far to the gradients, and owes nothing any more.

    Collective. Call it between ``backward()`` and ``optimizer.step()`` (with a GradScaler: before
    ``scaler.unscale_()``, and before clipping): a checkpoint that rank 0 saves after that step
    lacks nothing, whoever loads it. A parameter that has no gradient keeps what is owed to it.

    Args:
        model: whose gradients are compressed; None: the only one of this process.

    Raises:
        ValueError: which model is meant is not clear, or its gradients are not compressed.
        RuntimeError: the gradients have been unscaled already.
    """
    model, compressed = models.the(model)
    _check_still_scaled(compressed.grad_scaler)
    for index, name, average in _averages(compressed):
        parameter = compressed.parameters[name]
        if parameter.grad is not None:
            parameter.grad.add_(average.view(parameter.shape))
            compressed.native.forget(index, index + 1)


def _check_still_scaled(scaler: Any) -> None:
    for state in getattr(scaler, "_per_optimizer_states", {}).values():
        if state["stage"] is not torch.amp.grad_scaler.OptState.READY:
            raise RuntimeError(
                "lightcc.flush() adds to scaled gradients: call it before scaler.unscale_() and "
                "scaler.step()"
            )


def state_dict(model: DistributedDataParallel | None = None) -> dict[str, Any]:
    """What has not been sent so far, for a checkpoint. Collective.

    Returns a dict that torch.save and torch.distributed.checkpoint can save:

    * ``residuals``: by parameter name a float32 tensor of its shape: what all hosts together owe,
      in units of the averaged, unscaled gradient; the same on all ranks.
    * ``step``: an int64 tensor, how many backward passes there were.
    * ``exact``: of this rank alone, what it needs to go on bit for bit if world and buckets are the
      same then. Holds one shard of the gradients.

    Raises:
        ValueError: as ``flush()``.
    """
    model, compressed = models.the(model)
    scale = compressed.native.scale
    residuals = {
        name: (average / scale).view(compressed.parameters[name].shape)
        for _, name, average in _averages(compressed)
    }
    names = list(compressed.parameters)
    buckets = {
        str(number): {
            "from": torch.tensor(begin),
            "parameters": [names[index] for index in layout],
            "residual": residual,
            "momentum": momentum,
        }
        for number, (begin, _, layout, residual, momentum) in enumerate(compressed.native.save())
    }
    # Without buckets there is nothing exact to say, and a checkpoint of any world fits this dict.
    exact = {"groups": list(compressed.native.groups), "buckets": buckets}
    return {
        "residuals": residuals,
        "step": torch.tensor(compressed.native.step + 1),
        "exact": {_place(model): exact} if buckets else {},
    }


def _place(model: DistributedDataParallel) -> str:
    group = models.group_of(model)
    return f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}"


def load_state_dict(state: Mapping[str, Any], model: DistributedDataParallel | None = None) -> None:
    """Takes up what a checkpoint says has not been sent. Collective; call it before training.

    Where every rank has its own part of ``exact`` and the ranks stand on hosts as they did, each
    bucket that DDP arranges as it was goes on bit for bit. What belongs to others is shared out
    among the ranks, whatever their number, and goes out with the gradients of the next step.

    Args:
        state: of ``state_dict()``; that of another rank will do, too, without ``exact``.
        model: as in ``flush()``.

    Raises:
        ValueError: the state belongs to another model; the first parameters are named that only one
            of them has, or whose shapes differ. Nothing has changed then.
    """
    model, compressed = models.the(model)
    residuals = state["residuals"]
    _check_parameters(residuals, compressed)
    index_of = {name: index for index, name in enumerate(compressed.parameters)}
    exact = state.get("exact", {}).get(_place(model))
    known = exact is not None and list(exact["groups"]) == list(compressed.native.groups)
    everywhere = torch.tensor([int(known)])
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN, group=models.group_of(model))
    buckets = []
    if exact is not None and bool(everywhere):
        for bucket in exact["buckets"].values():
            residual, momentum = _values(bucket["residual"]), _values(bucket["momentum"])
            layout = [index_of[name] for name in bucket["parameters"]]
            buckets.append((int(bucket["from"]), residual.numel(), layout, residual, momentum))
    compressed.native.load(buckets, int(state["step"]) - 1)
    for name, index in index_of.items():
        compressed.native.add_average(index, _values(residuals[name]))


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().view(-1)


def _check_parameters(residuals: Mapping[str, torch.Tensor], compressed: Compressed) -> None:
    ours = compressed.parameters
    problems = [f"{name} is only in the model" for name in ours if name not in residuals]
    problems += [f"{name} is only in the state" for name in residuals if name not in ours]
    problems += [
        f"{name} has shape {tuple(ours[name].shape)} in the model, "
        f"{tuple(value.shape)} in the state"
        for name, value in residuals.items()
        if name in ours and value.shape != ours[name].shape
    ]
    if problems:
        shown = "; ".join(problems[:3])
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"this state of lightcc belongs to another model: {shown}{more}")
