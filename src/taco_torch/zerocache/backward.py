"""Steps of the optimizer while a backward pass goes on."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn.parallel import DistributedDataParallel

from taco_torch.zerocache import buckets, guards
from taco_torch.zerocache.hooks import NO_TASK, Hooks, current_task
from taco_torch.zerocache.rules import Rule

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer


def check_can_step(rule: Rule | None, around: nn.Module) -> None:
    """Raises where steps cannot be taken in backward passes, or gradients not be kept on pages.
    ``around``: the model that wrap() was given."""
    if rule is None:
        raise ValueError("step_in_backward=True needs an optimizer to step")
    if isinstance(around, DistributedDataParallel):
        buckets.check_options(around)


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
        self._undo = guards.guard(parameters, self._optimizer, self._accumulated)
        optimizer.take_gradients(gradients)

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
