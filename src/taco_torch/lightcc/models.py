"""The models whose gradients are compressed, and what is known about each."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taco_torch._extension import _C


class Leg(ABC):
    """Gradients that one group of ranks averages, by the names of their parameters. ``native``
    numbers these in the order of ``names``."""

    native: _C.GradientHook
    group: dist.ProcessGroup
    names: list[str]

    @abstractmethod
    def elements(self, name: str) -> int:
        """The elements that this rank has of the gradient, as ``native`` counts them."""

    @abstractmethod
    def shape(self, name: str) -> torch.Size:
        """The shape of the whole parameter."""

    @abstractmethod
    def gradient(self, name: str) -> torch.Tensor | None:
        """The part of the gradient that this rank has, to be added to."""

    @abstractmethod
    def part(self, name: str, flat: torch.Tensor) -> torch.Tensor:
        """``elements(name)`` in a row, as ``gradient(name)`` has them."""

    @abstractmethod
    def saved(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """The result of ``part()`` as a checkpoint holds it."""

    @abstractmethod
    def loaded(self, name: str, saved: torch.Tensor) -> torch.Tensor:
        """The contents of a checkpoint, as ``elements(name)`` in a row."""

    def unit(self, name: str) -> float:
        """The factor that turns the average over the ranks into a gradient."""
        return 1.0


@dataclass
class Kept:
    """A model as checkpoints need to know it."""

    legs: list[Leg]
    groups: list[dist.ProcessGroup]  # which join all ranks that have a part of the model
    place: str  # of this rank
    layout: list[int]  # that stays the same where a rank may go on bit for bit
    grad_scaler: Any

    def end_step(self) -> None:
        """Owes again what the newest step sent and nobody will use. Collective; before ``legs``
        are asked what they owe."""


class _Plain(Leg):
    """DistributedDataParallel: every rank has every parameter."""

    def __init__(self, model: DistributedDataParallel, compressed: "Compressed") -> None:
        self.native = compressed.native
        self.group = model.process_group
        self.names = list(compressed.parameters)
        self._parameters = compressed.parameters

    def elements(self, name: str) -> int:
        return self._parameters[name].numel()

    def shape(self, name: str) -> torch.Size:
        return self._parameters[name].shape

    def gradient(self, name: str) -> torch.Tensor | None:
        return self._parameters[name].grad

    def part(self, name: str, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(self._parameters[name].shape)

    def saved(self, name: str, part: torch.Tensor) -> torch.Tensor:
        return part

    def loaded(self, name: str, saved: torch.Tensor) -> torch.Tensor:
        return saved.detach().to(device="cpu", dtype=torch.float32).contiguous().view(-1)


@dataclass
class Compressed:
    """A DistributedDataParallel model. ``parameters`` in the order in which ``native`` numbers
    them."""

    native: _C.GradientHook
    parameters: dict[str, torch.nn.Parameter]
    grad_scaler: Any = None

    def kept(self, model: DistributedDataParallel) -> Kept:
        group: dist.ProcessGroup = model.process_group
        place = f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}"
        leg = _Plain(model, self)
        return Kept([leg], [group], place, list(self.native.groups), self.grad_scaler)


class Sharded(Protocol):
    """A model with modules of fully_shard (taco_torch/lightcc/fsdp.py)."""

    def kept(self) -> Kept: ...


_models: "WeakKeyDictionary[DistributedDataParallel, Compressed]" = WeakKeyDictionary()
# A value must not hold its key; what holds it otherwise is the modules themselves.
_sharded: "WeakKeyDictionary[torch.nn.Module, Sharded]" = WeakKeyDictionary()


def add(model: DistributedDataParallel, compressed: Compressed) -> None:
    _models[model] = compressed


def add_sharded(model: torch.nn.Module, sharded: Sharded) -> None:
    _sharded[model] = sharded


def find(model: DistributedDataParallel) -> Compressed | None:
    return _models.get(model)


def find_sharded(model: torch.nn.Module) -> Sharded | None:
    return _sharded.get(model)


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model that torch.compile has wrapped."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, torch.nn.Module) else model


def the(model: torch.nn.Module | None) -> Kept:
    """The state of the named model, or of the only one of this process.

    Raises:
        ValueError: the model's gradients are not compressed; or none is named and there are none,
            or several.
    """
    if model is None:
        known: list[torch.nn.Module] = [*_models, *_sharded]
        if len(known) != 1:
            raise ValueError(
                f"the gradients of {len(known) or 'no'} models are compressed in this process: "
                "name the model"
                + ("" if known else ", once lightcc.compress() has been called with it")
            )
        model = known[0]
    model = uncompiled(model)
    if isinstance(model, DistributedDataParallel) and model in _models:
        return _models[model].kept(model)
    if model in _sharded:
        return _sharded[model].kept()
    raise ValueError(
        f"the gradients of this {type(model).__name__} are not compressed: call "
        "lightcc.compress(model) first"
    )
