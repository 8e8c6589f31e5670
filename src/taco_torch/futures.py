"""Collectives inside callbacks of a future that waits for several others.

A callback attached to the future of a taco operation may start collectives: they are named after
that operation, so that it does not matter in which order ranks come to run their callbacks. The
future that ``torch.futures.collect_all`` returns would lose the name; this keeps it.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch

from taco_torch._extension import _C

Future = torch.futures.Future[Any]
Collect = Callable[[list[Future]], Future]


def _keeping_names(collect_all: Collect) -> Collect:
    @functools.wraps(collect_all)
    def collect_all_in_scope(futures: list[Future]) -> Future:
        combined = collect_all(futures)
        if not any(isinstance(future, _C.Future) for future in futures):
            return combined
        return _C.join_scopes(combined, futures)

    return collect_all_in_scope


def install() -> None:
    """Wraps what ``torch.futures.collect_all`` calls, so that it does not matter when a program
    took that name; done when the first taco group is made. Futures of other origin pass through
    untouched."""
    if not hasattr(torch._C._collect_all, "__wrapped__"):
        # Any: torch declares the base class of Future here, and casts it itself.
        torch._C._collect_all = cast(Any, _keeping_names(cast(Any, torch._C._collect_all)))
