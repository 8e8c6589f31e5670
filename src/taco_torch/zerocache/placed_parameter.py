"""Keeps torch's profiler away from memory that is not there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd import profiler
from torch.utils.weak import WeakIdKeyDictionary

_is_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
_marked: Any = WeakIdKeyDictionary()  # parameters of models that caches hold


class PlacedParameter(nn.Parameter):
    """A parameter of a model that a cache holds, while torch's profiler runs.

    ``torch.profiler.profile(with_stack=True)`` notes, when it first sees a module or an optimizer
    called, where the memory of their parameters is; for an absent one that is an error in the
    middle of the program. It does so before any hook has its turn, and only for parameters whose
    class is torch's own. Much else in torch takes parameters of that class alone, as what traces
    functions does: so they have it whenever nobody profiles.
    """


def mark(parameters: Iterable[nn.Parameter]) -> list[Callable[[], None]]:
    """Makes them PlacedParameters whenever torch's profiler runs, but for those of classes of the
    program's; what is returned ends that."""
    _watch_profiler()
    own = [parameter for parameter in parameters if type(parameter) is nn.Parameter]
    _marked.update(dict.fromkeys(own))
    if _is_profiling():
        _change(own, PlacedParameter)

    def undo() -> None:
        _change(own, nn.Parameter)
        for parameter in own:
            _marked.pop(parameter, None)

    return [undo]


def _change(parameters: Iterable[nn.Parameter], to: type[nn.Parameter]) -> None:
    for parameter in parameters:
        if type(parameter) in (nn.Parameter, PlacedParameter):
            parameter.__class__ = to


def _watch_profiler() -> None:
    """The functions by which torch's profilers begin and end, where they look them up."""
    places: Any = profiler
    for name, to in (("_enable_profiler", PlacedParameter), ("_disable_profiler", nn.Parameter)):
        function = getattr(places, name)
        if not hasattr(function, "_taco_marks"):
            setattr(places, name, _marking(function, to))


def _marking(function: Any, to: type[nn.Parameter]) -> Any:
    begins = to is PlacedParameter

    @functools.wraps(function)
    def marking(*args: Any, **kwargs: Any) -> Any:
        if begins:
            _change(list(_marked), to)
        try:
            return function(*args, **kwargs)
        finally:
            if not begins:
                _change(list(_marked), to)

    marking._taco_marks = function  # type: ignore[attr-defined]
    return marking
