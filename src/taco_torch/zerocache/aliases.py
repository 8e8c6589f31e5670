"""Other tensors on a parameter's memory, as ``p.data`` and ``p.detach().numpy()`` give them.

What is changed through ``p.data`` does not count as a change of the parameter, whose version
stays: ActNorm, quantizers and clamps change themselves so. The tensor that ``p.data`` returns has a
version of its own, though; so it is remembered while anybody else has it, and looked at whenever a
use ends.

Arrays would outlast the use, and what they are read or written for would be gone: they are copies
that cannot be written.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_Parameter: Any = nn.Parameter
_Tensor: Any = Tensor
_data: Any = Tensor.data  # torch's own
_watched: Any = WeakIdKeyDictionary()  # parameters, with (a weak reference to) their Aliases
_stores: Any = weakref.WeakSet()
_install = threading.Lock()
# The last reads by a pointer, and calls no operator that other threads would wait for.
ARRAYS = ("numpy", "__array__", "__dlpack__", "tolist")
OWN_REFERENCES = 2  # to an alias that nobody else has: a variable's and an argument's
MAX_TAKEN = 1024  # aliases that are not looked at yet, beside as many as are held


class Aliases:
    """The aliases of parameters that a store holds, which is told of those that were changed."""

    def __init__(self, store: Any, names: Mapping[nn.Parameter, str]) -> None:
        _install_once()
        self._names = names
        self._taken: list[tuple[nn.Parameter, Tensor, int]] = []
        self._most_taken = MAX_TAKEN
        self._store = store
        _stores.add(store)
        for parameter in names:
            _watched[parameter] = weakref.ref(self)

    def detach(self) -> None:
        """Watches no more."""
        self._taken.clear()
        _stores.discard(self._store)
        for parameter in self._names:
            _watched.pop(parameter, None)
        self._names = {}

    def add(self, parameter: nn.Parameter, alias: Tensor) -> None:
        """Somebody has this from now on."""
        if alias.is_inference():
            return
        self._taken.append((parameter, alias, alias._version))
        if len(self._taken) > self._most_taken:  # no use has ended for a long time
            self.note()
            self._most_taken = 2 * len(self._taken) + MAX_TAKEN

    def set(self, parameter: nn.Parameter, values: Tensor) -> bool:
        """``p.data = values``: a copy of them becomes the parameter's. False: they are no values
        for its place, or are there already."""
        own = (parameter.shape, parameter.dtype, parameter.device, parameter.layout)
        fits = (values.shape, values.dtype, values.device, values.layout) == own
        part = self._store.part_of(parameter)
        if not fits or part is None or self._store.part_of(values) == part:
            return False
        self._store.begin(part, False)
        try:
            with torch.no_grad():
                _data.__get__(parameter).copy_(values)
            self._store.note_change(parameter)
        finally:
            self._store.end(part, False)
        return True

    def note(self) -> None:
        """Before uses end: what was changed since the last time is noted."""
        if not self._taken:
            return
        kept, changed = [], []
        while self._taken:
            parameter, alias, version = self._taken.pop()
            if alias._version != version:
                changed.append(self._names[parameter])
            if sys.getrefcount(alias) > OWN_REFERENCES or _has_views(alias):
                kept.append((parameter, alias, alias._version))
        self._taken += kept  # to those that another thread has taken meanwhile
        if changed:
            self._store.note_write(changed)


def _has_views(alias: Any) -> bool:
    return bool(alias._use_count() > 1)


def _get_data(parameter: Tensor) -> Tensor:
    found: Tensor = _data.__get__(parameter)
    reference = _watched.get(parameter)
    aliases = reference() if reference is not None else None
    if aliases is not None:
        aliases.add(parameter, found)
    return found


def _set_data(parameter: Tensor, values: Tensor) -> None:
    reference = _watched.get(parameter)
    aliases = reference() if reference is not None else None
    if aliases is None or not aliases.set(parameter, values):
        _data.__set__(parameter, values)


def _copied(function: Any) -> Any:
    @functools.wraps(function)
    def array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not any(store.holds(self) for store in list(_stores)):
            return function(self, *args, **kwargs)
        made = function(self.clone(), *args, **kwargs)
        if hasattr(made, "setflags"):
            made.setflags(write=False)
        return made

    return array


def _install_once() -> None:
    with _install:
        if isinstance(_Parameter.__dict__.get("data"), property):
            return
        _Parameter.data = property(_get_data, _set_data, doc=_data.__doc__)
        for name in ARRAYS:
            setattr(_Tensor, name, _copied(getattr(_Tensor, name)))
        dlpack: Any = torch.utils.dlpack
        dlpack.to_dlpack = _copied(dlpack.to_dlpack)
