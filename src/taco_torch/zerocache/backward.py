"""Steps of the optimizer while a backward pass goes on."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.utils.weak import WeakIdKeyDictionary

from taco_torch.zerocache.hooks import NO_TASK, Hooks, current_task
from taco_torch.zerocache.rules import Rule

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer

# What torch does to gradients between backward and step: where it looks these up when it is called.
CLIPPING = (
    ("torch.nn.utils.clip_grad", "_clip_grads_with_norm_"),
    ("torch.nn.utils", "clip_grads_with_norm_"),
    ("torch.nn.utils.clip_grad", "clip_grad_value_"),
    ("torch.nn.utils", "clip_grad_value_"),
)
# Parameters that are stepped in backward passes, with (a weak reference to) their optimizer.
_stepped: Any = WeakIdKeyDictionary()


def check_can_step(rule: Rule | None, averaged: bool, spread: bool, gradients: str) -> None:
    """Raises where steps cannot be taken in backward passes, or gradients not be kept on pages."""
    if rule is None:
        raise ValueError("step_in_backward=True needs an optimizer to step")
    if averaged and not spread:
        raise NotImplementedError(
            "gradients that DistributedDataParallel, or the program, averages are final on each "
            "rank before they are averaged: leave step_in_backward=False; or have the cache "
            "average them, by shard_parameters=True without DistributedDataParallel"
        )
    if spread and gradients == "stepped" and rule.name == "Adafactor":
        raise NotImplementedError(
            "Adafactor needs a parameter's whole gradient before it steps any of it, and no rank "
            "has that: leave step_in_backward=False, or add clipping=True"
        )


class FinalGradients:
    """Hooks that have the optimizer take gradients away as soon as they are final.

    A parameter's gradient is accumulated once in a backward pass, after all uses of the parameter.
    Only in a pass that runs inside another (checkpoints with use_reentrant=True) more may follow;
    what is accumulated there waits for ``optimizer.step()``.
    """

    def __init__(
        self, optimizer: CachedOptimizer, parameters: Iterable[nn.Parameter], gradients: str
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._kept_on_pages = gradients == "kept"
        self._accumulating = 0
        self._task, self._outermost = NO_TASK, False
        self._pass = NO_TASK  # the last that took gradients
        self._undo: list[Callable[[], object]] = []
        for parameter in parameters:
            untyped: Any = parameter
            handle = untyped.register_post_accumulate_grad_hook(self._accumulated)
            _stepped[parameter] = self._optimizer
            self._undo += [handle.remove, partial(_stepped.pop, parameter, None)]
        optimizer.take_gradients(gradients)
        _guard_clipping()
        _guard_zeroing()

    def detach(self) -> None:
        """Takes the hooks off: from now on the parameters are as any others."""
        while self._undo:
            self._undo.pop()()
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.take_gradients("in memory")

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Inside, gradients add up: in memory, or on the pages that they are kept on."""
        self._accumulating += 1
        try:
            yield
        finally:
            self._accumulating -= 1

    def _accumulated(self, parameter: Tensor) -> None:
        optimizer = self._optimizer()
        more = self._accumulating > 0
        if optimizer is None or (more and not self._kept_on_pages) or not self._final():
            return
        assert isinstance(parameter, nn.Parameter)
        if self._pass != self._task:
            Hooks.at_end_of_task(optimizer.end_pass)
        self._pass = self._task
        optimizer.take_gradient(parameter, more)

    def _final(self) -> bool:
        task = current_task()
        if task != self._task:
            self._task, self._outermost = task, _passes_under_way() == 1
        return self._outermost


def _passes_under_way() -> int:
    """Backward passes that this thread is inside of."""
    code, passes = _engine_run_backward.__code__, 0
    frame = sys._getframe()
    while frame is not None:
        passes += frame.f_code is code
        frame = frame.f_back  # type: ignore[assignment]
    return passes


def _guard_clipping() -> None:
    """torch's functions would find no gradients, and do nothing: they raise from now on."""
    for module, name in CLIPPING:
        owner = sys.modules[module]
        function = getattr(owner, name, None)
        if function is not None and not hasattr(function, "_taco_guards"):
            setattr(owner, name, _guarded(function))


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
