"""The calls by which a cache shows itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import nn

from taco_torch._extension import _C
from taco_torch.zerocache import plot
from taco_torch.zerocache.hooks import NOT_COPIED
from taco_torch.zerocache.ranks import Ranks
from taco_torch.zerocache.report import Whole, as_text
from taco_torch.zerocache.step_plan import StepPlan, plan_of_run

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer


class View:
    """The part of a ZeroCache that changes nothing."""

    _store: Any
    _ranks: Ranks | None
    _model: nn.Module | None
    _names: dict[nn.Parameter, str]
    _optimizer: CachedOptimizer | None

    def __reduce_ex__(self, _: Any) -> Any:
        """Refused: there is one of each."""
        raise TypeError(NOT_COPIED)

    @property
    def store(self) -> Any:
        """The compiled side, for this package alone."""
        if self._store.closed:
            raise RuntimeError("this cache is closed")
        return self._store

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return bool(self._store.closed)

    @property
    def ranks(self) -> Ranks | None:
        """The processes that share it; None: this one alone."""
        return self._ranks

    @property
    def model(self) -> nn.Module | None:
        """The model that wrap() was given; None: nothing yet."""
        return self._model

    @property
    def optimizer(self) -> CachedOptimizer | None:
        """The optimizer that wrap() returned, if the model is trained."""
        return self._optimizer

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether it is one of the wrapped model's that lie in pages."""
        return parameter in self._names

    def stats(self) -> dict[str, Any]:
        """Counters since the cache was made; sizes in bytes, times in seconds.

        ``tiers``: of "device", "host" and "ssd" the ``capacity`` and what is ``resident``.
        ``ways``: of "host to device" and so on the ``copies``, their ``bytes``, and how long one
        was under way (``busy_s``) or waited for (``stalled_s``). ``hits`` and ``misses``: of pages
        that had left since they were used, those that were back in time, and those that were not.
        ``parameter_bytes`` and ``state_bytes``: of what this rank keeps. ``gathers``, where
        parameters are spread over ranks: ``stripes`` of pages that were gathered, how many of them
        ``ahead`` of their use, and how long uses waited for them (``waited_s``).
        """
        found: dict[str, Any] = self.store.stats()
        found["parameter_bytes"] = self._store.own_parameter_bytes
        found["state_bytes"] = self._store.own_state_bytes
        if self._optimizer is not None and self._ranks is None:
            found["state_bytes"] -= self._optimizer.state_not_begun()
        return found

    def report(self) -> str:
        """``stats()`` as a text to print; and what a training step moves, on average since the
        third, beside the least that any scheduler could move in the last one (a lower bound).
        Where several ranks train, each reports what it keeps and moves, beside the size of all."""
        stats, store, whole = self.stats(), self.store, None
        if self._ranks is not None:
            sizes = store.parameter_bytes, store.state_bytes
            whole = Whole(self._ranks.rank, self._ranks.size, *sizes)
        return as_text(stats, _C.zerocache.last_run(store, "train"), whole)

    def plan(
        self,
        device: str | int | None = None,
        host: str | int | None = None,
        ssd: str | int | None = None,
    ) -> StepPlan:
        """Predicts what a training step takes, also with other capacities, by a simulation of the
        scheduler with the times and speeds that were measured.

        Args:
            device: capacity, as for the cache; None: as it is.
            host: likewise.
            ssd: likewise, of all disks together, without their directories: "64GiB"; 0: no disks.

        Raises:
            RuntimeError: fewer than two training steps have ended.
            ValueError: that would not fit, with what has to be larger; or it is no size.
        """
        stats, store = self.stats(), self.store
        caps = {"device": device, "host": host, "ssd": ssd}
        return plan_of_run(store, stats["tiers"], stats["ways"], caps)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Saves a picture of the last training step: how much of each tier held parameters and
        each kind of state, in which pass, and when somebody waited. Needs matplotlib.

        Raises:
            RuntimeError: no training step has ended.
            ImportError: matplotlib is not installed.
            ValueError: matplotlib knows no format with that ending.
        """
        found = _C.zerocache.residency_over_run(self.store, "train", plot.POINTS)
        if found is None:
            raise RuntimeError("no training step has ended: plot() shows the last one")
        plot.draw(found, self.stats()["tiers"], path)
