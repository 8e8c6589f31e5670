"""torch's GradScaler over gradients that a cache keeps, where no ``p.grad`` shows them.

A scaler looks for gradients in one place, ``_unscale_grads_``: it multiplies them there by the
inverse of its scale, and learns whether one of them is infinite or NaN. From then on it asks the
optimizer of a cache for those that are not in memory. All else is the scaler's own: it skips the
step, and changes its scale, as it does with any optimizer.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer

_WHERE = "_unscale_grads_"  # of torch's GradScaler, which its subclasses have, too
# Optimizers whose gradients leave memory before a scaler comes.
_optimizers: weakref.WeakSet[CachedOptimizer] = weakref.WeakSet()


def show_to_scalers(optimizer: CachedOptimizer) -> None:
    """From now on a GradScaler asks it for what is not in memory."""
    _optimizers.add(optimizer)
    scaler: Any = torch.amp.GradScaler
    function = getattr(scaler, _WHERE, None)
    if function is not None and not hasattr(function, "_taco_asks"):
        setattr(scaler, _WHERE, _asking(function))


def hide_from_scalers(optimizer: CachedOptimizer) -> None:
    """Hides an optimizer whose gradients are in memory again, as any others."""
    _optimizers.discard(optimizer)


def can_be_asked() -> bool:
    """Whether this torch's GradScaler looks for gradients where it is known to."""
    return hasattr(getattr(torch.amp.GradScaler, _WHERE, None), "_taco_asks")


def _asking(function: Any) -> Any:
    @functools.wraps(function)
    def unscale(
        self: Any, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, *args: Any, **kwargs: Any
    ) -> dict[torch.device, Tensor]:
        elsewhere: bool | None = None
        if optimizer in _optimizers:
            elsewhere = optimizer.unscale_gradients(inv_scale.item())
        found: dict[torch.device, Tensor] = function(
            self, optimizer, inv_scale, found_inf, *args, **kwargs
        )
        if elsewhere is None:
            return found
        host = torch.device("cpu")
        if host not in found:
            found[host] = found_inf.to(host, copy=True)
        if elsewhere:
            found[host].fill_(1.0)
        return found

    unscale._taco_asks = function  # type: ignore[attr-defined]
    return unscale
