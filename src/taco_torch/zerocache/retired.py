"""The optimizer that was given to a cache: it steps no more, and has no state to save or load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def retire(optimizer: torch.optim.Optimizer) -> None:
    """Has it refuse what it is asked for from now on; schedulers that have it look on."""
    for method in ("step", "state_dict", "load_state_dict", "add_param_group"):
        setattr(optimizer, method, _refused(method))
    optimizer.step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _refused(method: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            f"this optimizer was given to ZeroCache.wrap(): call {method}() of the optimizer that "
            f"wrap() returned"
        )

    return refuse
