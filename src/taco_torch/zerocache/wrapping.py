"""The checks that ``ZeroCache.wrap`` makes before it changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from taco_torch._extension import _C
from taco_torch.zerocache import backward, construction, needs
from taco_torch.zerocache.ranks import Held, Ranks
from taco_torch.zerocache.rules import Rule, matrices_of, rule_of


@dataclass(frozen=True)
class Wrapping:
    """A model and its optimizer that fit into a cache."""

    model: nn.Module
    names: dict[nn.Parameter, list[str]]  # all of each, the first of them first
    trained: set[nn.Parameter]
    thawing: set[nn.Parameter]  # that are frozen, and join the trained where there is room
    optimizer: torch.optim.Optimizer | None
    rule: Rule | None
    kinds: tuple[str, ...]
    # That are final: they stay "in memory", are "stepped" (by ranks that share parameters: once
    # they are averaged), "kept" on pages, or "averaged" by ranks.
    gradients: str
    spread: bool  # over ranks: parameters as well as state

    def stateful(self) -> list[tuple[str, tuple[int, int, int] | None]]:
        """Names of parameters that get state, with the shape where Adafactor keeps moments."""
        assert self.rule is not None
        return [
            (own[0], matrices_of(parameter) if self.rule.moments(parameter) else None)
            for parameter, own in self.names.items()
            if parameter in self.trained
        ]

    def check_room(self, store: Any, size: int) -> None:
        """Raises ValueError where it does not fit on one of ``size`` ranks. Names what was built in
        the store; where ranks have built it together, all of them make this call."""
        construction.name_what_was_made(store, self.names)
        self._check_room(store, size, self.trained)

    def thaw(self, store: Any, ranks: Ranks | None) -> None:
        """Has frozen parameters join the trained where every rank has room for their state. Where
        not, they stay frozen, and are refused by name if they do not."""
        has_room = True
        try:
            self._check_room(store, ranks.size if ranks else 1, self.trained | self.thawing)
        except ValueError:
            has_room = False
        if all(ranks.gather(has_room)) if ranks else has_room:
            self.trained.update(self.thawing)

    def _check_room(self, store: Any, size: int, trained: set[nn.Parameter]) -> None:
        needs.check_room(
            store,
            self.model,
            self.names,
            trained,
            self.kinds,
            self.rule,
            self.gradients,
            size,
            self.spread,
        )

    def check_same(self, store: Any, ranks: Ranks, page_bytes: int) -> None:
        """Raises MismatchError on all ranks where they are about to hold something else."""
        optimizer = f"{self.rule.name} ({', '.join(self.kinds)})" if self.rule else "none"
        ranks.check_same(self._held(store), page=page_bytes, optimizer=optimizer)

    def _held(self, store: Any) -> Sequence[Held]:
        def values_of(parameter: nn.Parameter) -> torch.Tensor:
            if not store.holds(parameter):
                return parameter.detach()
            copy = torch.empty_strided(
                parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu"
            )
            store.read(parameter, copy)
            return copy

        return [
            Held(
                own[0],
                tuple(parameter.shape),
                str(parameter.dtype),
                parameter in self.trained,
                _C.zerocache.digest(values_of(parameter)),
            )
            for parameter, own in self.names.items()
        ]


def wrapping_of(
    store: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    around: nn.Module,
    gradients: str,
    spread: bool,
) -> Wrapping:
    """Raises as ``ZeroCache.wrap`` says it, and changes nothing. ``around``: what it was given, the
    model or DistributedDataParallel around it. ``spread``: each rank keeps a part
    of the parameters.
    ``gradients``: as of Wrapping, as one rank would have them."""
    names = needs.names_of(model)
    rule = rule_of(optimizer) if optimizer is not None else None
    groups = optimizer.param_groups if optimizer is not None else []
    kinds = rule.kinds(groups) if rule is not None else ()
    trained = needs.check_parameters(store, names, groups, rule)
    thawing = needs.may_be_trained(names, groups, rule, trained)
    if gradients != "in memory":
        backward.check_can_step(rule, around)
    if spread and gradients != "stepped":
        gradients = "averaged"
    return Wrapping(model, names, trained, thawing, optimizer, rule, kinds, gradients, spread)
