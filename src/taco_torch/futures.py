"""Collectives inside callbacks of a future that waits for several others.

A callback attached to the future of a taco operation may start collectives: they are named after
that operation, so that it does not matter in which order ranks come to run their callbacks. The
future that ``torch.futures.collect_all`` returns would lose the name; this keeps it.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from taco_torch import _C

Future = torch.futures.Future[Any]


def _keeping_names(collect_all: Callable[[list[Future]], Future]) -> Callable[..., Future]:
    @functools.wraps(collect_all)
    def collect_all_in_scope(futures: list[Future]) -> Future:
        combined = collect_all(futures)
        if not any(isinstance(future, _C.Future) for future in futures):
            return combined
        return _C.join_scopes(combined, futures)

    return collect_all_in_scope


def install() -> None:
    """Wraps ``torch.futures.collect_all``; done by importing taco_torch. Futures of other
    origin pass through it untouched."""
    if not hasattr(torch.futures.collect_all, "__wrapped__"):
        torch.futures.collect_all = _keeping_names(torch.futures.collect_all)
