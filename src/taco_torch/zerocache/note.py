"""The part of a checkpoint beside pages: buffers, the optimizer's options, extra states."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from taco_torch.zerocache.model_state import EXTRA_STATE, extra_states, without_numpy
from taco_torch.zerocache.optimizer import CachedOptimizer

NOTE_VERSION = 1


class Notes:
    """The notes of one model and its optimizer, whose parameters a cache holds."""

    def __init__(
        self, model: nn.Module, names: Mapping[nn.Parameter, str], optimizer: CachedOptimizer | None
    ) -> None:
        self._model = model
        self._names = names
        self._optimizer = optimizer

    def encode(self, extra: Any) -> bytes:
        """A note of what is now. Raises TypeError where it could not be read again."""
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
            }
        return note

    def read(self, note: bytes, directory: str) -> dict[str, Any]:
        """Raises ValueError where a checkpoint does not belong to what is held here."""
        found: dict[str, Any] = torch.load(io.BytesIO(note), weights_only=True)
        if found.get("version") != NOTE_VERSION:
            raise ValueError(f"'{directory}' was saved by another version of taco_torch")
        saved, own = found["optimizer"], self._optimizer
        name = saved["name"] if saved else "no optimizer"
        if name != (own.rule.name if own is not None else "no optimizer"):
            raise ValueError(f"the checkpoint in '{directory}' is of {name}")
        if own is not None and len(saved["groups"]) != len(own.param_groups):
            raise ValueError(
                f"the checkpoint in '{directory}' has {len(saved['groups'])} parameter groups, the "
                f"optimizer {len(own.param_groups)}"
            )
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
            if value.shape != found["buffers"][key].shape:
                raise ValueError(f"the checkpoint in '{directory}' has another shape of '{key}'")
        return found

    def apply_whole(self, note: Mapping[str, Any]) -> None:
        """Takes over what ``read()`` returned, an interrupt from the keyboard or not."""
        try:
            self._apply(note)
        except KeyboardInterrupt:
            self._apply(note)
            raise

    @torch.no_grad()
    def _apply(self, note: Mapping[str, Any]) -> None:
        for name, value in self._unplaced().items():
            value.copy_(note["buffers"][name])
        for name, module in extra_states(self._model).items():
            module.set_extra_state(note["modules"][name])
        if self._optimizer is None:
            return
        self._optimizer.set_numbers(note["optimizer"]["steps"])
        pairs = zip(self._optimizer.param_groups, note["optimizer"]["groups"], strict=True)
        for group, saved in pairs:
            group.update(saved)
