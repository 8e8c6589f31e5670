"""The models whose gradients are compressed, and what is known about each."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taco_torch._extension import _C


@dataclass
class Compressed:
    """One model. ``parameters`` in the order in which ``native`` numbers them."""

    native: _C.GradientHook
    parameters: dict[str, torch.nn.Parameter]
    grad_scaler: Any = None


_models: "WeakKeyDictionary[DistributedDataParallel, Compressed]" = WeakKeyDictionary()


def add(model: DistributedDataParallel, compressed: Compressed) -> None:
    _models[model] = compressed


def find(model: DistributedDataParallel) -> Compressed | None:
    return _models.get(model)


def the(model: DistributedDataParallel | None) -> tuple[DistributedDataParallel, Compressed]:
    """The named model, or the only one of this process.

    Raises:
        ValueError: the model's gradients are not compressed; or none is named and there are none,
            or several.
    """
    if model is None:
        if len(_models) != 1:
            raise ValueError(
                f"the gradients of {len(_models) or 'no'} models are compressed in this process: "
                "name the model"
                + ("" if len(_models) else ", once lightcc.compress() has been called with it")
            )
        model = next(iter(_models))
    found = _models.get(model)
    if found is None:
        raise ValueError(
            f"the gradients of this {type(model).__name__} are not compressed: call "
            "lightcc.compress(model) first"
        )
    return model, found


def group_of(model: DistributedDataParallel) -> dist.ProcessGroup:
    group: dist.ProcessGroup = model.process_group
    return group
