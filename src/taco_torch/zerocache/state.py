"""An optimizer's state where it is in a cache: what stands for it, and what is loaded."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from taco_torch.zerocache.cache import ZeroCache
    from taco_torch.zerocache.optimizer import CachedOptimizer

MASTER = "master"  # what a bfloat16 parameter is rounded from


class State(Mapping[nn.Parameter, dict[str, Any]]):
    """The state of all parameters that have been stepped, as torch's ``Optimizer.state``, but for
    reading only: each look makes copies."""

    def __init__(self, optimizer: CachedOptimizer) -> None:
        self._optimizer = weakref.ref(optimizer)

    def _owner(self) -> CachedOptimizer:
        owner = self._optimizer()
        if owner is None:
            raise ReferenceError("the optimizer of this state is gone")
        return owner

    def __getitem__(self, parameter: nn.Parameter) -> dict[str, Any]:
        return self._owner().read_state(parameter)

    def __iter__(self) -> Iterator[nn.Parameter]:
        return self._owner().stepped()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def loaded_entries(
    optimizer: CachedOptimizer, groups: list[dict[str, Any]], state: Mapping[Any, dict[str, Any]]
) -> dict[nn.Parameter, dict[str, Any]]:
    """Each parameter's entry of a state dict, once all of them are known to fit."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    given = [len(group["params"]) for group in groups]
    if sizes != given:
        raise ValueError(
            f"the loaded state dict has groups of {given} parameters, the optimizer of {sizes}"
        )
    found = {}
    for group, own in zip(groups, optimizer.param_groups, strict=True):
        for key, parameter in zip(group["params"], own["params"], strict=True):
            if state.get(key) and optimizer.trains(parameter):
                check_entry(optimizer, parameter, state[key])
                found[parameter] = state[key]
    return found


def take_entries(
    optimizer: CachedOptimizer,
    cache: ZeroCache,
    steps: dict[nn.Parameter, int],
    loaded: Mapping[nn.Parameter, Mapping[str, Any]],
) -> None:
    """Writes what was loaded to the cache, and how many ``steps`` each parameter has taken; those
    that have no entry are as if they had taken none."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entry = loaded.get(parameter)
            if entry is None and not steps.pop(parameter, 0):
                continue
            for kind in optimizer.kinds_of(parameter):
                values = optimizer.like(parameter, kind)
                if entry is None:
                    values.zero_()
                elif kind in entry:
                    values.copy_(entry[kind])
                else:  # the master copy, of which plain torch has none
                    values.copy_(cache.full(parameter))
                cache.store.write_state(parameter, kind, values)
            if entry is not None:
                steps[parameter] = int(entry["step"]) if optimizer.rule.counts else 1


def check_entry(
    optimizer: CachedOptimizer, parameter: nn.Parameter, entry: Mapping[str, Any]
) -> None:
    """Raises ValueError, with the parameter's name, where this is not the state that it has."""
    name = optimizer.name_of(parameter)
    kinds = [kind for kind in optimizer.kinds_of(parameter) if kind != MASTER]
    wanted = {*kinds, *(["step"] if optimizer.rule.counts else [])}
    missing = wanted - {kind for kind, value in entry.items() if value is not None}
    unknown = set(entry) - wanted - {MASTER}
    if missing or unknown:
        what = f"lacks {sorted(missing)}" if missing else f"has {sorted(unknown)} besides"
        raise ValueError(
            f"the loaded state of parameter '{name}' {what}; {optimizer.rule.name} keeps "
            f"{sorted(wanted)}"
        )
    for kind in (*kinds, MASTER):
        expected = optimizer.like(parameter, kind).shape
        if kind in entry and entry[kind].shape != expected:
            raise ValueError(
                f"the loaded {kind} of parameter '{name}' has shape "
                f"{tuple(entry[kind].shape)}, and should have {tuple(expected)}"
            )
