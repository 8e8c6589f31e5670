"""Raises where a program would look for gradients that have left memory, and find none; or has
the cache clip them, where it has them on pages."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer

# Functions of torch that change gradients between backward and step: where torch looks them up when
# it calls them.
CLIPPING = (
    ("torch.nn.utils.clip_grad", "_clip_grads_with_norm_"),
    ("torch.nn.utils", "clip_grads_with_norm_"),
    ("torch.nn.utils.clip_grad", "clip_grad_value_"),
    ("torch.nn.utils", "clip_grad_value_"),
)
# Its names, by which programs that do not import it themselves call it.
NORM_CLIPPING = (
    ("torch.nn.utils.clip_grad", "clip_grad_norm_"),
    ("torch.nn.utils", "clip_grad_norm_"),
)
# Parameters that are stepped in backward passes, with (a weak reference to) their optimizer.
_stepped: Any = WeakIdKeyDictionary()


def guard(
    parameters: Iterable[Tensor],
    optimizer: weakref.ref[CachedOptimizer],
    accumulated: Callable[[Tensor], None],
) -> list[Callable[[], object]]:
    """Their gradients are taken by this optimizer, which ``accumulated`` sees to: it is called with
    each parameter whose gradient a backward pass has accumulated. What is returned ends that."""
    _guard_clipping()
    _guard_zeroing()
    undo: list[Callable[[], object]] = []
    for parameter in parameters:
        _stepped[parameter] = optimizer
        untyped: Any = parameter
        undo.append(untyped.register_post_accumulate_grad_hook(accumulated).remove)
        undo.append(partial(_stepped.pop, parameter, None))
    return undo


def _guard_clipping() -> None:
    """torch's functions would find no gradients, and do nothing: they raise from now on, but for
    the one that a cache knows."""
    for names, guarded in ((CLIPPING, _guarded), (NORM_CLIPPING, _clipped_on_pages)):
        for module, name in names:
            owner = sys.modules[module]
            function = getattr(owner, name, None)
            if function is not None and not hasattr(function, "_taco_guards"):
                setattr(owner, name, guarded(function))


def _clipped_on_pages(function: Any) -> Any:
    @functools.wraps(function)
    def clip_grad_norm_(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        given: list[Tensor]
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        for optimizer in filter(None, map(_optimizer_of, given)):
            if optimizer.kept is not None and len(optimizer.kept) > 0:
                return optimizer.clip_on_pages(given, max_norm, norm_type, error_if_nonfinite)
        found: Tensor = function(given, max_norm, norm_type, error_if_nonfinite, foreach)
        return found

    clip_grad_norm_._taco_guards = function  # type: ignore[attr-defined]
    return clip_grad_norm_


def _guarded(function: Any) -> Any:
    @functools.wraps(function)
    def guarded(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given: list[Any]
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        for parameter in given:
            optimizer = _optimizer_of(parameter)
            if optimizer is not None:
                optimizer.check_has_gradient(parameter)
        return function(given, *args, **kwargs)

    guarded._taco_guards = function  # type: ignore[attr-defined]
    return guarded


def _guard_zeroing() -> None:
    """``model.zero_grad()`` would find no gradient to drop, and the next pass add to what the cache
    keeps: it raises from now on where that is so."""
    function: Any = nn.Module.zero_grad
    if hasattr(function, "_taco_guards"):
        return

    @functools.wraps(function)
    def zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
        for parameter in self.parameters():
            optimizer = _optimizer_of(parameter)
            if optimizer is not None and optimizer.kept is not None:
                optimizer.kept.check_may_be_zeroed(parameter)
        function(self, set_to_none)

    zero_grad._taco_guards = function  # type: ignore[attr-defined]
    nn.Module.zero_grad = zero_grad  # type: ignore[method-assign]


def _optimizer_of(parameter: Tensor) -> CachedOptimizer | None:
    reference = _stepped.get(parameter)
    return reference() if reference is not None else None
