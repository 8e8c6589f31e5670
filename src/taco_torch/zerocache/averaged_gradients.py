"""Gradients that all ranks have averaged in a backward pass, and a rank's use of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer

MAX_UNDER_WAY = 2  # sums of gradients, or of buckets of them


class AveragedGradients:
    """The averages of one pass, which the optimizer takes.

    An error on this rank alone is raised where the pass ends: until then the rank takes part in
    what all ranks do, and averages stay in memory; as copies where that memory is ``lent``.
    """

    def __init__(self, *, lent: bool = False) -> None:
        self.failure: Exception | None = None
        self._lent = lent
        self._left: list[tuple[Tensor, Tensor]] = []

    def take(self, optimizer: CachedOptimizer | None, parameter: Tensor, mean: Tensor) -> None:
        """``optimizer``: None where none trains the parameter, whose mean stays."""
        if optimizer is not None and self.failure is None:
            assert isinstance(parameter, nn.Parameter)
            parameter.grad = mean
            try:
                optimizer.take_gradient(parameter)
                return
            except Exception as error:
                self.failure = error
                optimizer.note_failure(error)
        parameter.grad = None
        self._left.append((parameter, mean.clone() if self._lent else mean))

    def give_back(self) -> None:
        """Puts averages that were not taken into ``p.grad``."""
        for parameter, mean in self._left:
            parameter.grad = mean
        self._left.clear()
