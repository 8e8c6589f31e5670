"""Gradients that ranks average where parameters are spread over them, and their norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from taco_torch.zerocache.clipping import not_finite

if TYPE_CHECKING:
    from taco_torch.zerocache.cache import ZeroCache


class AveragedGradients:
    """Gradients that have left memory for their owners: each rank has the means of what it owns.

    All ranks call all this at once, with the same parameters in the same order.
    """

    option = "shard_parameters"  # of wrap()
    takes_all = True  # what passes leave in memory, too

    def __init__(self, cache: ZeroCache, names: Mapping[nn.Parameter, str]) -> None:
        self._cache = cache
        self._names = names
        self._given: set[nn.Parameter] = set()
        self._lost = cache.store.gradients_lost  # so often, when the first of these was given

    def _here(self) -> set[nn.Parameter]:
        """Parameters whose gradients were not lost since; they are lost where ranks have parted."""
        lost = self._cache.store.gradients_lost
        if lost != self._lost:
            self._given.clear()
        self._lost = lost
        return self._given

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._here()

    def __len__(self) -> int:
        return len(self._here())

    def keep(self, parameter: nn.Parameter, gradient: Tensor, _: bool) -> None:
        """Begins to average a gradient; who gives it lets go of it."""
        self._cache.store.average_gradient(parameter, gradient)
        self._here().add(parameter)

    def grows(self, parameter: nn.Parameter) -> bool:
        """Whether later passes may add to its gradient, as in torch."""
        return parameter in self

    def check_whole(self) -> None:
        """Does nothing: averaged gradients are always whole."""

    def check_may_be_zeroed(self, parameter: nn.Parameter) -> None:
        """Raises RuntimeError where a program would take its gradient for gone, and later passes
        would add to it."""
        if parameter in self:
            raise RuntimeError(
                f"the gradient of parameter '{self._names[parameter]}' has been averaged over "
                f"ranks, where model.zero_grad() does not reach it: call optimizer.zero_grad()"
            )

    def end_pass(self) -> None:
        """A backward pass is over; what it has not had gradients for will have none."""
        if self._here():
            self._cache.store.finish_gradients()

    def clear(self) -> None:
        """The step has used them."""
        self._given.clear()

    def drop(self) -> None:
        """Instead of a step."""
        self._cache.store.drop_gradients()
        self.clear()

    def factor(self, _: nn.Parameter) -> float:
        """The factor that its step multiplies the gradient by."""
        return 1.0

    def unscale(self, factor: float) -> bool | None:
        """Like CachedOptimizer.unscale_gradients(), with the same result on all ranks."""
        found: bool = self._cache.store.unscale_gradients(factor)
        return found if self._here() else None

    @torch.no_grad()
    def clip(self, max_norm: float, norm_type: float, error_if_nonfinite: bool) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ over the means; the norm is the same on all ranks."""
        norm_type = float(norm_type)
        if not norm_type > 0:
            raise ValueError(
                f"norm_type={norm_type} must be above 0, where ranks average gradients"
            )
        norm: float = self._cache.store.gradient_norm(norm_type)
        if error_if_nonfinite and not math.isfinite(norm):
            raise not_finite(norm, norm_type)
        if not norm <= max_norm:  # NaN, too, as torch's
            self._cache.store.multiply_gradients(float(max_norm) / (norm + 1e-6))
        return torch.tensor(norm, dtype=torch.float32, device="cpu")
