"""Keeps torch's profiler away from memory that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from torch import nn


class PlacedParameter(nn.Parameter):
    """A parameter of a model that a cache holds, in all else an ``nn.Parameter``.

    ``torch.profiler.profile(with_stack=True)`` notes, when it first sees a module or an optimizer
    called, where the memory of their parameters is; for an absent one that is an error in the
    middle of the program. It does so before any hook has its turn, and only for parameters whose
    class is torch's own.
    """


def mark(parameters: Iterable[nn.Parameter]) -> list[Callable[[], None]]:
    """Makes them PlacedParameters, but for those of classes of the program's; what is returned
    takes that back."""
    undo: list[Callable[[], None]] = []
    for parameter in parameters:
        if type(parameter) is nn.Parameter:
            parameter.__class__ = PlacedParameter
            undo.append(partial(setattr, parameter, "__class__", nn.Parameter))
    return undo
