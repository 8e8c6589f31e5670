"""Checkpoints of torch.distributed.checkpoint, written and read tensor by tensor::

    from taco_torch.zerocache import distributed_checkpoint

    distributed_checkpoint.save(cache, "/data/checkpoint")
    distributed_checkpoint.load(cache, "/data/checkpoint")

They are those of plain torch that saves ``{"model": model, "optimizer": optimizer}`` as its
``get_state_dict(model, optimizer)`` has them, and go there and back. One tensor at a time is in
memory beside the caps, however large model and state are; ``state_dict()`` copies all at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as load_by_plan
from torch.distributed.checkpoint.state_dict_saver import save as save_by_plan

from taco_torch.zerocache.model_state import EXTRA_STATE, extra_states, without_numpy
from taco_torch.zerocache.rules import check_group
from taco_torch.zerocache.state import MASTER, check_entry

if TYPE_CHECKING:
    from taco_torch.zerocache.cache import ZeroCache
    from taco_torch.zerocache.optimizer import CachedOptimizer

MODEL, OPTIMIZER = "model", "optimizer"


class Place(NamedTuple):
    """The place that bytes of the cache belong to."""

    parameter: nn.Parameter
    kind: str | None = None  # of its state; None: the parameter itself


class StandIns:
    """Tensors of one element that have the size and dtype of those in a cache, and stand for them
    in a state dict, so that torch plans with it; each is read or written when its turn comes."""

    def __init__(self, cache: ZeroCache, optimizer: CachedOptimizer | None) -> None:
        self._cache, self._optimizer = cache, optimizer
        self._made: dict[int, tuple[Tensor, Place]] = {}
        self._lock = Lock()  # torch may write by several threads

    def make(self, place: Place) -> Tensor:
        """A new one; of a parameter, or of its state."""
        shape = self._like(place).shape if place.kind is not None else place.parameter.shape
        dtype = torch.float32 if place.kind is not None else place.parameter.dtype
        made = torch.empty((), dtype=dtype, device="cpu").expand(shape)
        self._made[id(made)] = made, place
        return made

    def place_of(self, found: Any) -> Place | None:
        """The place that ``found`` stands for; None: it stands for itself."""
        return self._made[id(found)][1] if id(found) in self._made else None

    def _like(self, place: Place) -> Tensor:
        assert self._optimizer is not None
        assert place.kind is not None
        return self._optimizer.like(place.parameter, place.kind)

    def read(self, place: Place) -> Tensor:
        """A copy."""
        with self._lock:
            if place.kind is None:
                return self._cache.full(place.parameter)
            values = self._like(place)
            self._cache.store.read_state(place.parameter, place.kind, values)
            return values

    def write(self, place: Place, values: Tensor) -> None:
        """Sets all of it."""
        if place.kind is None:
            self._cache.full(place.parameter, values)
            return
        copy = self._like(place)
        copy.copy_(values)
        self._cache.store.write_state(place.parameter, place.kind, copy)


class SavePlanner(DefaultSavePlanner):
    """torch's, which reads a tensor when that is about to be written."""

    def __init__(self, stand_ins: StandIns) -> None:
        super().__init__()
        self._stand_ins = stand_ins

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Like torch's."""
        found = super().lookup_object(index)
        place = self._stand_ins.place_of(found)
        return found if place is None else self._stand_ins.read(place)


class LoadPlanner(DefaultLoadPlanner):
    """torch's, which hands a tensor to the cache as soon as it has been read. One that was saved in
    parts is put together in the cache, part by part, so that never more than one is in memory."""

    def __init__(self, stand_ins: StandIns) -> None:
        super().__init__()
        self._stand_ins = stand_ins
        self._parts: dict[MetadataIndex, tuple[Place, Tensor]] = {}  # and all of it

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Like torch's."""
        found = self.lookup_tensor(read_item.dest_index)
        place = self._stand_ins.place_of(found)
        if place is None:
            return super().resolve_tensor(read_item)  # type: ignore[no-any-return]
        is_whole = found.shape == torch.Size(read_item.lengths)
        new = partial(torch.empty, found.shape, dtype=found.dtype, device="cpu")
        whole = new() if is_whole else self._stand_ins.read(place)
        part: Tensor = self.transform_tensor(read_item, whole)
        self._parts[read_item.dest_index] = place, whole
        return part

    def commit_tensor(self, read_item: ReadItem, _: Tensor) -> None:
        """Like torch's."""
        if read_item.dest_index in self._parts:
            place, whole = self._parts.pop(read_item.dest_index)
            self._stand_ins.write(place, whole)


def _check_can_stream(cache: ZeroCache, what: str) -> None:
    _ = cache.store  # that it is closed comes first
    if cache.model is None:
        raise RuntimeError("this cache holds no model: call wrap() first")
    if cache.ranks is not None:
        raise NotImplementedError(
            f"distributed_checkpoint.{what}() is for a cache of one process, and "
            f"{cache.ranks.size} ranks share this one: ZeroCache.{what}() does it together"
        )
    if cache.optimizer is not None:
        cache.optimizer.check_between_steps(f"distributed_checkpoint.{what}()")


def _model_state(cache: ZeroCache, stand_ins: StandIns) -> dict[str, Any]:
    """Like ``model.state_dict()``; tied parameters have one stand-in for each name."""
    assert cache.model is not None
    found: dict[str, Any] = {}
    extra = {f"{name}.{EXTRA_STATE}".lstrip(".") for name in extra_states(cache.model)}
    for name, value in cache.model.state_dict(keep_vars=True).items():
        if isinstance(value, nn.Parameter) and cache.holds(value):
            found[name] = stand_ins.make(Place(value))
        elif isinstance(value, Tensor) and name not in extra:
            found[name] = value.detach()
        else:
            found[name] = without_numpy(value)
    return found


def _entry(
    optimizer: CachedOptimizer,
    stand_ins: StandIns,
    parameter: nn.Parameter,
    number: int,
    kinds: Iterable[str],
) -> dict[str, Any]:
    """As torch has it, of its own kinds alone."""
    entry: dict[str, Any] = {}
    if optimizer.rule.counts:
        entry["step"] = torch.tensor(float(number), dtype=torch.float32, device="cpu")
    for kind in kinds:
        entry[kind] = stand_ins.make(Place(parameter, kind))
    return entry


def _groups(optimizer: CachedOptimizer) -> list[dict[str, Any]]:
    return [
        {**group, "params": [optimizer.name_of(parameter) for parameter in group["params"]]}
        for group in without_numpy(
            [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        )
    ]


def save(cache: ZeroCache, checkpoint_id: str | os.PathLike[str], **options: Any) -> None:
    """Writes the model and the optimizer's state as ``torch.distributed.checkpoint.save`` does.

    Args:
        cache: of one process, after wrap().
        checkpoint_id: a directory.
        options: of torch's function.

    Raises:
        RuntimeError: the cache is closed or holds no model; or a backward pass has begun a step.
        NotImplementedError: ranks share the cache.
    """
    _check_can_stream(cache, "save")
    optimizer = cache.optimizer
    stand_ins = StandIns(cache, optimizer)
    state: dict[str, Any] = {MODEL: _model_state(cache, stand_ins)}
    if optimizer is not None:
        numbers = optimizer.numbers()
        entries = {}
        for parameter in optimizer.stepped():
            name = optimizer.name_of(parameter)
            kinds = optimizer.kinds_of(parameter)
            entries[name] = _entry(optimizer, stand_ins, parameter, numbers[name], kinds)
        state[OPTIMIZER] = {"state": entries, "param_groups": _groups(optimizer)}
    save_by_plan(state, checkpoint_id=checkpoint_id, planner=SavePlanner(stand_ins), **options)


def _saved_entries(metadata: Metadata) -> dict[str, dict[str, Tensor]]:
    """The entries of the optimizer's state: tensors that have the sizes of those saved."""
    entries: dict[str, dict[str, Tensor]] = {}
    for key, path in (metadata.planner_data or {}).items():
        saved = metadata.state_dict_metadata[key]
        if path[:2] == (OPTIMIZER, "state") and isinstance(saved, TensorStorageMetadata):
            one = torch.empty((), dtype=torch.float32, device="cpu")
            entries.setdefault(path[2], {})[path[3]] = one.expand(saved.size)
    return entries


def _load_groups(
    optimizer: CachedOptimizer, metadata: Metadata, reader: Any, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The saved groups, once they are known to fit."""
    saved: list[dict[str, Any]] = []
    for path in (metadata.planner_data or {}).values():
        if path[:2] != (OPTIMIZER, "param_groups"):
            continue
        saved.extend({} for _ in range(len(saved), path[2] + 1))
        if path[3] == "params":
            names = saved[path[2]].setdefault("params", [])
            names.extend("" for _ in range(len(names), path[4] + 1 if len(path) > 4 else 0))
        else:
            saved[path[2]][path[3]] = None
    state = {OPTIMIZER: {"param_groups": saved}}
    load_by_plan(state, storage_reader=reader, **options)
    groups: list[dict[str, Any]] = state[OPTIMIZER]["param_groups"]
    own = _groups(optimizer)
    if [group.get("params") for group in groups] != [group["params"] for group in own]:
        raise ValueError(
            f"the checkpoint has groups of other parameters than the optimizer: of "
            f"{[len(group.get('params', ())) for group in groups]} and of "
            f"{[len(group['params']) for group in own]}"
        )
    merged = [
        {**mine, **{key: value for key, value in group.items() if key != "params"}}
        for mine, group in zip(own, groups, strict=True)
    ]
    for group in merged:
        group.pop("params")
        check_group(optimizer.rule, group)
    return merged


def load(cache: ZeroCache, checkpoint_id: str | os.PathLike[str], **options: Any) -> None:
    """Takes what ``save()``, or plain torch, has written.

    Args:
        cache: of one process, after wrap().
        checkpoint_id: a directory.
        options: of ``torch.distributed.checkpoint.load``.

    Raises:
        ValueError: there is none, or it is of another optimizer; nothing has changed.
        NotImplementedError, RuntimeError: as ``save()``.
        CheckpointException: torch's: it is of another model, and nothing has changed; or reading
            has failed in the middle, and some parameters are the checkpoint's then, as with torch.
    """
    _check_can_stream(cache, "load")
    optimizer, reader = cache.optimizer, FileSystemReader(checkpoint_id)
    try:
        metadata = reader.read_metadata()
    except OSError as error:
        raise ValueError(f"'{os.fspath(checkpoint_id)}' has no checkpoint: {error}") from error
    stand_ins = StandIns(cache, optimizer)
    state: dict[str, Any] = {MODEL: _model_state(cache, stand_ins)}
    entries: dict[nn.Parameter, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    if optimizer is not None:
        groups = _load_groups(optimizer, metadata, reader, options)
        saved = _saved_entries(metadata)
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            entry = saved.get(optimizer.name_of(parameter))
            if entry and optimizer.trains(parameter):
                check_entry(optimizer, parameter, entry)
                kinds = [kind for kind in entry if kind != "step"]
                entries[parameter] = _entry(optimizer, stand_ins, parameter, 0, kinds)
        by_name = {optimizer.name_of(parameter): entry for parameter, entry in entries.items()}
        state[OPTIMIZER] = {"state": by_name}
    load_by_plan(state, storage_reader=reader, planner=LoadPlanner(stand_ins), **options)
    assert cache.model is not None
    for name, module in extra_states(cache.model).items():
        module.set_extra_state(state[MODEL][f"{name}.{EXTRA_STATE}".lstrip(".")])
    if optimizer is not None:
        _take(optimizer, stand_ins, entries)
        for group, new in zip(optimizer.param_groups, groups, strict=True):
            group.update(new)


def _take(
    optimizer: CachedOptimizer,
    stand_ins: StandIns,
    entries: Mapping[nn.Parameter, Mapping[str, Any]],
) -> None:
    """Counts the steps of what has been read; the others are as if they had taken none."""
    numbers = optimizer.numbers()
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        name, entry = optimizer.name_of(parameter), entries.get(parameter)
        kinds = optimizer.kinds_of(parameter) if optimizer.trains(parameter) else ()
        if entry is not None:
            numbers[name] = int(entry["step"]) if optimizer.rule.counts else 1
            if MASTER in kinds and MASTER not in entry:  # plain torch has none
                stand_ins.write(Place(parameter, MASTER), stand_ins.read(Place(parameter)))
        elif numbers.pop(name, 0):
            for kind in kinds:
                stand_ins.write(
                    Place(parameter, kind), torch.zeros((), dtype=torch.float32, device="cpu")
                )
    optimizer.set_numbers(numbers)


__all__ = ["load", "save"]
