"""Raises where a program would look for gradients that have left memory, and find none; or has
the cache clip them, where it has them on pages."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from taco_torch.zerocache.clipping import EUCLIDEAN, not_finite

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
        undo.append(_on_gradient(parameter, accumulated))
        undo.append(partial(_stepped.pop, parameter, None))
    return undo


def _on_gradient(parameter: Any, accumulated: Callable[[Tensor], None]) -> Callable[[], object]:
    """Also of one that is frozen now, which torch gives no hooks, and may be unfrozen."""
    frozen = not parameter.requires_grad
    try:
        parameter.requires_grad_(True)
        undo: Callable[[], object]
        undo = parameter.register_post_accumulate_grad_hook(accumulated).remove
    finally:
        parameter.requires_grad_(not frozen)
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
        if float(max_norm) == math.inf and float(norm_type) == EUCLIDEAN:
            norm = _norm_of_used(given)
            if norm is not None:
                if error_if_nonfinite and not norm.isfinite():
                    raise not_finite(norm.item(), float(norm_type))
                return norm
        found: Tensor = function(given, max_norm, norm_type, error_if_nonfinite, foreach)
        return found

    clip_grad_norm_._taco_guards = function  # type: ignore[attr-defined]
    return clip_grad_norm_


@torch.no_grad()
def _norm_of_used(given: Iterable[Any]) -> Tensor | None:
    """The norm of all gradients, for a program that looks at it and clips by infinity, where the
    backward pass has used some of them; None: it has not."""
    norms: dict[torch.dtype, list[Tensor]] = {}  # torch takes them by dtype
    any_used = False
    for parameter in given:
        optimizer = _optimizer_of(parameter)
        norm = optimizer.norm_of_used(parameter) if optimizer is not None else None
        any_used = any_used or norm is not None
        if norm is None:
            if optimizer is not None:
                optimizer.check_has_gradient(parameter)
            if parameter.grad is None:
                continue
            norm = torch.linalg.vector_norm(parameter.grad, EUCLIDEAN)
        norms.setdefault(norm.dtype, []).append(norm)
    if not any_used:
        return None
    all_norms = torch.stack([norm for same in norms.values() for norm in same])
    total: Tensor = torch.linalg.vector_norm(all_norms, EUCLIDEAN)
    return total


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
