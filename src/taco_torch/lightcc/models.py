"""The models whose gradients are compressed, and what is known about each."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taco_torch._extension import _C

# Parts of names that wrappers around modules add: of activation checkpointing, torch.compile and
# FullyShardedDataParallel.
_WRAPPERS = {"_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module"}


def plain_name(name: str) -> str:
    """A parameter's name as torch's state dicts have it, so that a model whose modules are wrapped
    otherwise can load it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


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

    def strides(self) -> dict[str, list[int]]:
        """Strides of the parameters whose elements do not lie row by row: ``elements(name)`` in a
        row have another order then."""
        return {}

    def arrangement(self) -> dict[str, Any]:
        """How gradients will be shared out among buckets, for a checkpoint; empty: that follows
        from nothing but the model. Collective."""
        return {}

    def arrange(self, saved: Mapping[str, Any]) -> bool:
        """Takes up what ``arrangement()`` was. False: that cannot be chosen any more."""
        return False

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


class _Plain(Leg):
    """DistributedDataParallel: every rank has every parameter."""

    def __init__(self, model: DistributedDataParallel, compressed: "Compressed") -> None:
        self.native = compressed.native
        self._model = model
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
        parameter = self._parameters[name]
        if not _is_dense(parameter):
            return flat.view(parameter.shape)
        # DDP's buckets have elements in the order in which those of the parameter lie.
        return flat.as_strided(parameter.shape, parameter.stride(), flat.storage_offset())

    def saved(self, name: str, part: torch.Tensor) -> torch.Tensor:
        return part.contiguous()

    def loaded(self, name: str, saved: torch.Tensor) -> torch.Tensor:
        flat = torch.empty(self.elements(name), dtype=torch.float32, device="cpu")
        self.part(name, flat).copy_(saved.detach())
        return flat

    def strides(self) -> dict[str, list[int]]:
        return {
            name: list(parameter.stride())
            for name, parameter in self._parameters.items()
            if not parameter.is_contiguous()
        }

    def arrangement(self) -> dict[str, Any]:
        if self._model.reducer._rebuild_buckets():  # as the next forward pass would
            self._model._has_rebuilt_buckets = True
        buckets = _C.arrangement_of(self._model.reducer)
        return {"bucket_bytes": self._model.bucket_bytes_cap, "buckets": buckets}

    def arrange(self, saved: Mapping[str, Any]) -> bool:
        if int(saved["bucket_bytes"]) != self._model.bucket_bytes_cap:
            return False  # the program wants others now
        buckets = [[int(number) for number in bucket] for bucket in saved["buckets"]]
        if not _C.arrange(self._model.reducer, buckets):
            return False
        self._model._has_rebuilt_buckets = True
        return True


def _is_dense(parameter: torch.Tensor) -> bool:
    """Whether its elements lie without gaps, in whatever order."""
    return torch._debug_has_internal_overlap(parameter) == 0


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
