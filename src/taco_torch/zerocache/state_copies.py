"""Copies of an optimizer's state that are written back when a program changes them in place.

torch's state is the tensors that it steps, so ReLoRA, pruning and resets of embeddings change them
in place. Here the state lies in pages, and a look at it makes copies. They are tensors that see
each torch function that they, or views of them, are given: where one has changed them, all of the
copy is written to the cache before it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from taco_torch.zerocache.nodes import tensors_in

if TYPE_CHECKING:
    from taco_torch.zerocache.state import State


class Copied:
    """One kind of the state of a parameter, as it was when it was copied."""

    def __init__(self, state: State, parameter: nn.Parameter, kind: str, values: Tensor) -> None:
        self._state = state
        self._parameter = parameter
        self.kind = kind
        self.values = values  # an ordinary tensor
        self._made_at = self._now()

    def _now(self) -> tuple[int, int]:
        return self._state.loaded, self._state.optimizer.steps.get(self._parameter, 0)

    def described(self) -> str:
        """As errors have it."""
        return f"{self.kind} of parameter '{self._state.optimizer.name_of(self._parameter)}'"

    def write_back(self) -> None:
        """Raises RuntimeError where the cache has other state by now than was copied."""
        if self._now() != self._made_at:
            raise RuntimeError(
                f"this copy of {self.described()} was made before the last step or load, and is "
                f"changed after it: take optimizer.state[parameter] anew"
            )
        self._state.write(self._parameter, self.kind, self.values)
        self._made_at = self._now()


class StateCopy(Tensor):
    """A copy, or a view of one. Other results of functions are ordinary tensors."""

    copied: Copied

    @staticmethod
    def of(values: Tensor, copied: Copied) -> StateCopy:
        """Looks at ``values``, which are the copy's, or a view of it."""
        with torch._C.DisableTorchFunctionSubclass():
            made = values.as_subclass(StateCopy)
        made.copied = copied
        return made

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        _: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = [each for each in tensors_in((args, kwargs)) if isinstance(each, StateCopy)]
        with torch._C.DisableTorchFunctionSubclass():
            before = [each._version for each in given]
            result = function(*args, **(kwargs or {}))
            changed = {
                each.copied: None
                for each, version in zip(given, before, strict=True)
                if each._version != version
            }
            if getattr(function, "__name__", "") == "__set__":  # of data: other memory
                copied = args[0].copied
                copied.values.copy_(args[0])
                changed[copied] = None
            result = _watched(result, given)
        for copied in changed:
            copied.write_back()
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As an ordinary tensor's: what is loaded belongs to no cache."""
        ordinary: Any = self._ordinary()
        return ordinary.__reduce_ex__(protocol)

    def __deepcopy__(self, _: Any) -> Tensor:
        return self._ordinary().clone()

    def _ordinary(self) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(Tensor)


def _watched(result: Any, given: Sequence[StateCopy]) -> Any:
    """The same, where views of copies are watched, too; arrays of their memory are read-only."""
    if isinstance(result, (list, tuple)) and type(result) in (list, tuple):
        return type(result)(_watched(each, given) for each in result)
    if isinstance(result, np.ndarray):
        result.setflags(write=False)
    if type(result) is not Tensor:
        return result
    memory = result.untyped_storage().data_ptr()
    for each in given:
        if each.copied.values.untyped_storage().data_ptr() == memory:
            return StateCopy.of(result, each.copied)
    return result


class Entry(dict[str, Any]):
    """The state of one parameter."""

    def __init__(self, state: State, parameter: nn.Parameter) -> None:
        super().__init__()
        for kind, values in state.optimizer.read_state(parameter).items():
            copied = Copied(state, parameter, kind, values)
            super().__setitem__(kind, StateCopy.of(values, copied))

    def __setitem__(self, kind: str, values: Any) -> None:
        if kind not in self:
            raise KeyError(
                f"{kind!r} is no state that this optimizer keeps of the parameter: it has "
                f"{sorted(self)}"
            )
        copied = self[kind].copied
        given = torch.as_tensor(values)
        if given.shape != copied.values.shape:
            raise ValueError(
                f"{copied.described()} has shape {tuple(copied.values.shape)}, the value "
                f"{tuple(given.shape)}"
            )
        self[kind].copy_(given)

    def update(self, *others: Any, **more: Any) -> None:
        """Sets each of them."""
        for kind, values in dict(*others, **more).items():
            self[kind] = values

    def __ior__(self, other: Any) -> Entry:  # type: ignore[override,misc]
        self.update(other)
        return self

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "one kind of a parameter's state cannot be taken away: `del "
            "optimizer.state[parameter]` begins all of it anew"
        )

    __delitem__ = pop = popitem = clear = setdefault = _refuse
