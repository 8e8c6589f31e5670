"""An optimizer's state where it is in a cache: what stands for it, and what is loaded."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from taco_torch.zerocache.state_copies import Entry

if TYPE_CHECKING:
    from taco_torch.zerocache.cache import ZeroCache
    from taco_torch.zerocache.optimizer_state import StateDicts
    from taco_torch.zerocache.ranks import Ranks

MASTER = "master"  # what a bfloat16 parameter is rounded from


class State(MutableMapping[nn.Parameter, dict[str, Any]]):
    """The state of all parameters that have been stepped, as torch's ``Optimizer.state``: each look
    makes copies. What is changed of them in place, or set, is changed in the cache."""

    def __init__(self, optimizer: StateDicts, cache: ZeroCache, ranks: Ranks | None) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._cache = weakref.ref(cache)
        self._ranks = ranks
        self.loaded = 0  # how often all of it was replaced: copies from before are out of date

    @property
    def optimizer(self) -> StateDicts:
        """The optimizer whose state this is."""
        owner = self._optimizer()
        if owner is None:
            raise ReferenceError("the optimizer of this state is gone")
        return owner

    def _cache_to_change(self) -> ZeroCache:
        self.optimizer.check_between_steps("its state is changed")
        if self._ranks is not None:
            raise RuntimeError(
                f"the optimizer's state is dealt out among {self._ranks.size} ranks, and cannot be "
                f"changed on one of them: change what state_dict() returns after "
                f"consolidate_state_dict(), and give it to load_state_dict() of all ranks"
            )
        cache = self._cache()
        if cache is None:
            raise ReferenceError("the cache of this state is gone")
        return cache

    def write(self, parameter: nn.Parameter, kind: str, values: Tensor) -> None:
        """Sets one kind of what is kept of a parameter that has state; "step": how many it has
        taken."""
        cache = self._cache_to_change()
        if kind == "step":
            self.optimizer.steps[parameter] = int(values)
            return
        with cache.alone():
            cache.store.write_state(parameter, kind, values)

    def __getitem__(self, parameter: nn.Parameter) -> dict[str, Any]:
        return Entry(self, parameter)

    def __setitem__(self, parameter: nn.Parameter, entry: Mapping[str, Any]) -> None:
        optimizer = self.optimizer
        if not isinstance(parameter, nn.Parameter) or not optimizer.trains(parameter):
            raise KeyError("this tensor is none of the parameters that the cache trains")
        if entry:
            check_entry(optimizer, parameter, entry)
        found = {parameter: entry} if entry else {}
        take_entries(optimizer, self._cache_to_change(), found, [parameter])

    def __delitem__(self, parameter: nn.Parameter) -> None:
        if parameter not in self:
            raise KeyError("this tensor is no parameter that has been stepped")
        take_entries(self.optimizer, self._cache_to_change(), {}, [parameter])

    def __contains__(self, parameter: object) -> bool:
        return any(parameter is each for each in self)

    def __iter__(self) -> Iterator[nn.Parameter]:
        return self.optimizer.stepped()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def popitem(self) -> tuple[nn.Parameter, dict[str, Any]]:
        parameter = next(iter(self), None)
        if parameter is None:
            raise KeyError("no parameter has been stepped")
        return parameter, self.pop(parameter)

    def clear(self) -> None:
        for parameter in list(self):
            del self[parameter]


def loaded_entries(
    optimizer: StateDicts, groups: list[dict[str, Any]], state: Mapping[Any, dict[str, Any]]
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
    optimizer: StateDicts,
    cache: ZeroCache,
    loaded: Mapping[nn.Parameter, Mapping[str, Any]],
    parameters: Iterable[nn.Parameter],
) -> None:
    """Writes what was loaded of these parameters to the cache, and counts the steps that each has
    taken; those that have no entry are as if they had taken none."""
    steps = optimizer.steps
    for parameter in parameters:
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


def check_entry(optimizer: StateDicts, parameter: nn.Parameter, entry: Mapping[str, Any]) -> None:
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
