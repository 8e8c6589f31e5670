"""The part of a checkpoint beside pages: buffers, the optimizer's options, extra states."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from taco_torch.zerocache.model_state import EXTRA_STATE, extra_states, without_numpy
from taco_torch.zerocache.optimizer import CachedOptimizer

NOTE_VERSION = 2  # that of 1 has no names of the groups' parameters


class Kept(NamedTuple):
    """Things that a checkpoint's note has replaced: buffers with their values, and extra states."""

    buffers: list[tuple[Tensor, Tensor]]
    modules: list[tuple[nn.Module, Any]]

    @torch.no_grad()
    def put_back(self) -> None:
        """As it was."""
        for buffer, values in self.buffers:
            buffer.copy_(values)
        for module, state in self.modules:
            module.set_extra_state(state)


class Notes:
    """The notes of one model and its optimizer, whose parameters a cache holds."""

    def __init__(
        self, model: nn.Module, names: Mapping[nn.Parameter, str], optimizer: CachedOptimizer | None
    ) -> None:
        self._model = model
        self._names = names
        self._optimizer = optimizer

    def encode(self, extra: Any) -> bytes:
        """A note of what is now. Raises TypeError where it could not be read again, and ValueError
        for a model that has lost parameters."""
        self._check_whole("saved")
        if self._optimizer is not None:
            self._optimizer.check_between_steps("save()")
        note = io.BytesIO()
        content = without_numpy(self._content(extra))
        try:
            torch.save(content, note)
            torch.load(io.BytesIO(note.getvalue()), weights_only=True)
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise TypeError(
                "extra, an option of a parameter group, or what a module's get_extra_state() "
                "returned, could not be loaded again: give numbers, text, tensors and containers "
                "of them. "
                f"torch says: {error}"
            ) from None
        return note.getvalue()

    def _check_whole(self, done: str) -> None:
        own = {id(parameter) for parameter in self._model.parameters()}
        for parameter, name in self._names.items():
            if id(parameter) not in own:
                raise ValueError(
                    f"the model does not have parameter '{name}' any more, whose module was "
                    f"replaced or removed after ZeroCache.wrap(): it cannot be {done} before the "
                    f"cache is closed, and the model wrapped as it is now"
                )

    def _unplaced(self) -> dict[str, Tensor]:
        """Buffers that belong to checkpoints, and parameters without elements."""
        held = {id(parameter) for parameter in self._names}
        state = self._model.state_dict(keep_vars=True)
        extra = {f"{name}.{EXTRA_STATE}".lstrip(".") for name in extra_states(self._model)}
        return {
            name: value.detach()
            for name, value in state.items()
            if isinstance(value, Tensor) and id(value) not in held and name not in extra
        }

    def _content(self, extra: Any) -> dict[str, Any]:
        note: dict[str, Any] = {"version": NOTE_VERSION, "extra": extra, "optimizer": None}
        note["buffers"] = self._unplaced()
        note["modules"] = {
            name: module.get_extra_state() for name, module in extra_states(self._model).items()
        }
        if self._optimizer is not None:
            note["optimizer"] = {
                "name": self._optimizer.rule.name,
                "steps": self._optimizer.numbers(),
                "groups": [
                    {key: value for key, value in group.items() if key != "params"}
                    for group in self._optimizer.param_groups
                ],
                "parameters": self._names_by_group(),
            }
        return note

    def _names_by_group(self) -> list[list[str]]:
        assert self._optimizer is not None
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        return [
            [names[parameter] for parameter in group["params"]]
            for group in self._optimizer.param_groups
        ]

    def read(self, note: bytes, directory: str) -> dict[str, Any]:
        """Raises ValueError where a checkpoint does not belong to what is held here."""
        self._check_whole("loaded")
        found: dict[str, Any] = torch.load(io.BytesIO(note), weights_only=True)
        if found.get("version") not in range(1, NOTE_VERSION + 1):
            raise ValueError(f"'{directory}' was saved by another version of taco_torch")
        saved, own = found["optimizer"], self._optimizer
        name = saved["name"] if saved else "no optimizer"
        if own is not None and name != own.rule.name:  # who does not train leaves state there
            raise ValueError(f"the checkpoint in '{directory}' is of {name}")
        if own is not None:
            saved["groups"] = self._groups_in_order(saved, directory)
        modules = extra_states(self._model).keys()
        if found["modules"].keys() != modules:
            raise ValueError(
                f"the checkpoint in '{directory}' has an extra state of other modules: "
                f"{sorted(found['modules'].keys() ^ modules)}"
            )
        here = self._unplaced()
        if found["buffers"].keys() != here.keys():
            raise ValueError(
                f"the checkpoint in '{directory}' has other buffers: "
                f"{sorted(found['buffers'].keys() ^ here.keys())}"
            )
        for key, value in here.items():
            other = found["buffers"][key]
            if (value.shape, value.dtype) != (other.shape, other.dtype):
                raise ValueError(
                    f"the checkpoint in '{directory}' has buffer '{key}' of {other.dtype} and "
                    f"shape {tuple(other.shape)}, the model of {value.dtype} and "
                    f"{tuple(value.shape)}"
                )
        return found

    def _groups_in_order(self, saved: Mapping[str, Any], directory: str) -> list[dict[str, Any]]:
        """The saved groups' options in the order of the optimizer's groups: each has those of the
        group that had its parameters."""
        groups: list[dict[str, Any]] = saved["groups"]
        own = self._names_by_group()
        if len(groups) != len(own):
            raise ValueError(
                f"the checkpoint in '{directory}' has {len(groups)} parameter groups, the "
                f"optimizer {len(own)}"
            )
        if "parameters" not in saved:  # of version 1: as many groups, in the same order
            return groups
        by_names = {
            frozenset(names): group
            for names, group in zip(saved["parameters"], groups, strict=True)
        }
        for number, names in enumerate(own):
            if frozenset(names) not in by_names:
                raise ValueError(
                    f"the checkpoint in '{directory}' has no parameter group of the optimizer's "
                    f"group {number} ({_listed(names)}): its groups are of "
                    f"{'; '.join(map(_listed, saved['parameters']))}. Make the optimizer's groups "
                    f"of the same parameters, in any order"
                )
        return [by_names[frozenset(names)] for names in own]

    @torch.no_grad()
    def take_first(self, note: Mapping[str, Any], kept: Kept) -> None:
        """Before pages are loaded: buffers and extra states of what ``read()`` returned. A module
        may refuse its own. What they replace is ``kept``, to be put back where the load fails."""
        for name, value in self._unplaced().items():
            kept.buffers.append((value, value.clone()))
            value.copy_(note["buffers"][name])
        for name, module in extra_states(self._model).items():
            kept.modules.append((module, deepcopy(module.get_extra_state())))
            module.set_extra_state(note["modules"][name])

    def take_options(self, note: Mapping[str, Any]) -> None:
        """Once pages are loaded: the rest, an interrupt from the keyboard or not."""
        try:
            self._take_options(note)
        except KeyboardInterrupt:
            self._take_options(note)
            raise

    def _take_options(self, note: Mapping[str, Any]) -> None:
        if self._optimizer is None:
            return
        self._optimizer.set_numbers(note["optimizer"]["steps"])
        pairs = zip(self._optimizer.param_groups, note["optimizer"]["groups"], strict=True)
        for group, saved in pairs:
            group.update(saved)


def _listed(names: Sequence[str]) -> str:
    """ "'a.weight', 'a.bias' and 3 more"."""
    shown = ", ".join(f"'{name}'" for name in names[:2]) or "no parameter"
    return f"{shown} and {len(names) - 2} more" if len(names) > 2 else shown


def load(store: Any, notes: Notes, directory: str) -> Any:
    """Has ``store`` load a checkpoint, and takes its note: all of both, or nothing where it is
    refused. Returns its ``extra``."""
    found: list[dict[str, Any]] = []
    loaded: list[bool] = []
    kept = Kept([], [])

    def agree(note: bytes) -> None:
        found.append(notes.read(note, directory))
        notes.take_first(found[0], kept)

    load = partial(store.load, directory, agree)
    try:  # as in ZeroCache.run_step(): an interrupt shows once the pages are there, and not noted
        list(map(methodcaller("__call__"), (load, partial(loaded.append, True))))
    finally:
        if loaded:
            notes.take_options(found[0])
        else:
            kept.put_back()
    return found[0]["extra"]
