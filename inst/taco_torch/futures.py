"""Collectives inside callbacks of a future that waits for several others.

A callback attached to the future of a taco operation may start collectives. They are named after
that operation, so the order in which ranks run their callbacks does not matter. The future that
``torch.futures.collect_all`` returns would lose that name; this module keeps it.
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
    """Wraps the function that ``torch.futures.collect_all`` calls, so that also programs that have
    imported ``collect_all`` before get the wrapped one. Called when the first taco group is made.
    Lists without a taco future pass through unchanged."""
    if not hasattr(torch._C._collect_all, "__wrapped__"):
        # Any, since torch declares the base class of Future here and casts it itself.
        torch._C._collect_all = cast(Any, _keeping_names(cast(Any, torch._C._collect_all)))
