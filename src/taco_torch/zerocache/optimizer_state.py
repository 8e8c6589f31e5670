"""The state of the optimizer that a cache gives back, as torch's programs save and load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from taco_torch.zerocache.memory import check_memory_for
from taco_torch.zerocache.ranks import Ranks
from taco_torch.zerocache.rules import Rule, check_group
from taco_torch.zerocache.state import MASTER, State, loaded_entries, take_entries

if TYPE_CHECKING:
    from taco_torch.zerocache.averaging import AveragedGradients
    from taco_torch.zerocache.cache import ZeroCache
    from taco_torch.zerocache.clipping import KeptGradients

FLOAT_BYTES = 4  # of state


class StateDicts(torch.optim.Optimizer):
    """The part of a CachedOptimizer that copies its state out, and takes other."""

    _cache: ZeroCache
    _ranks: Ranks | None
    _gathered: dict[nn.Parameter, dict[str, Any]] | None
    _names: Mapping[nn.Parameter, str]
    _trained: Set[nn.Parameter]
    _early: dict[nn.Parameter, int] | None
    _agreed: bool
    _lost: int
    _failure: Exception | None
    _state: State
    _plain: dict[nn.Parameter, dict[str, Any]] | None
    _kinds: tuple[str, ...]
    rule: Rule
    steps: dict[nn.Parameter, int]
    kept: KeptGradients | AveragedGradients | None

    def name_of(self, parameter: nn.Parameter) -> str:
        """The name that errors use."""
        return self._names[parameter]

    def trains(self, parameter: nn.Parameter) -> bool:
        """Whether it has, or may get, state."""
        return parameter in self._trained

    def state_not_begun(self) -> int:
        """Bytes that the state of parameters would take that are frozen, and were never stepped."""
        return sum(
            FLOAT_BYTES * parameter.numel() * len(self.kinds_of(parameter))
            for parameter in self._trained
            if not parameter.requires_grad
            and parameter not in self.steps
            and not self.rule.moments(parameter)
        )

    def kinds_of(self, parameter: nn.Parameter) -> tuple[str, ...]:
        """The kinds of state kept for a parameter that has been stepped."""
        kinds = (*self._kinds, *self.rule.moments(parameter))
        return (*kinds, MASTER) if parameter.dtype == torch.bfloat16 else kinds

    def like(self, parameter: nn.Parameter, kind: str) -> Tensor:
        """A kind of its state, not filled in: float32, as the parameter lies, or smaller."""
        shape = self.rule.moments(parameter).get(kind)
        if shape is not None:
            return torch.empty(shape, dtype=torch.float32, device="cpu")
        size, strides = parameter.shape, parameter.stride()
        return torch.empty_strided(size, strides, dtype=torch.float32, device="cpu")

    def _forget_lost(self) -> None:
        """Where ranks have parted, gradients of that pass are gone, and nobody has used them."""
        if self._early is None:
            return
        store = self._cache.store
        if self._early and store.gradients_lost != self._lost:
            stepped = set(store.stepped_early())
            kept = {p: number for p, number in self._early.items() if self._names[p] in stepped}
            self._early = kept
        self._lost = store.gradients_lost

    def check_between_steps(self, what: str) -> None:
        """Raises RuntimeError where a backward pass has begun a step that is not at its end."""
        self._forget_lost()
        if self._early or self._agreed:
            raise RuntimeError(
                f"the step that a backward pass has begun is not at its end: call optimizer.step() "
                f"(or optimizer.zero_grad()) before {what}"
            )

    def stepped(self) -> Iterator[nn.Parameter]:
        """Parameters that have state, in the order of the groups."""
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self.rule.counts or self.kinds_of(parameter)
                if kept and self.steps.get(parameter, 0):
                    yield parameter

    def read_state(self, parameter: nn.Parameter) -> dict[str, Any]:
        """A copy of what is kept of one parameter; empty before its first step."""
        self.check_between_steps("its state is read")
        if self._ranks is not None:
            self._check_gathered()
            return (self._gathered or {}).get(parameter, {})
        return self._read(parameter)

    def _read(self, parameter: nn.Parameter) -> dict[str, Any]:
        number = self.steps.get(parameter, 0)
        if number == 0:
            return {}
        found: dict[str, Any] = {}
        if self.rule.counts:
            found["step"] = torch.tensor(float(number), dtype=torch.float32, device="cpu")
        with self._cache.alone():
            for kind in self.kinds_of(parameter):
                found[kind] = self.like(parameter, kind)
                self._cache.store.read_state(parameter, kind, found[kind])
        return found

    def _check_gathered(self) -> None:
        if self._gathered is None and self._ranks is not None:
            raise RuntimeError(
                f"the optimizer's state is dealt out among {self._ranks.size} ranks: call "
                f"consolidate_state_dict(to=rank) on all of them, and state_dict() on that rank "
                f"before the next step; ZeroCache.save() writes all of it to disk"
            )

    @torch.no_grad()
    def consolidate_state_dict(self, to: int = 0) -> None:
        """Where several ranks share the state: has all of it copied to rank ``to`` of their group,
        whose ``state_dict()`` then returns it, until the next step. All ranks call it at once, as
        that of torch's ZeroRedundancyOptimizer.

        Raises:
            ValueError: there is no such rank.
            MemoryError: there is not enough memory for that on rank ``to``.
            RuntimeError: a backward pass has begun a step that is not at its end.
        """
        if self._ranks is None:
            self.check_between_steps("consolidate_state_dict()")
            return
        if not 0 <= to < self._ranks.size:
            raise ValueError(f"to={to} must be a rank of {self._ranks.size}: 0 is the first")
        here = self._ranks.rank == to

        def check() -> None:
            self.check_between_steps("consolidate_state_dict()")
            if here:
                check_memory_for(self._cache.store.state_bytes, "the optimizer's state")

        self._ranks.together(check)
        self._gathered = None
        gathered = {}
        for parameter in self.stepped():
            entry = self._read(parameter)
            if here:
                gathered[parameter] = entry
        self._gathered = gathered if here else None

    def state_dict(self) -> dict[str, Any]:
        """Like torch's: copies of all state, in memory.

        Raises:
            MemoryError: there is not enough memory for that; ``ZeroCache.save`` writes to disk.
            RuntimeError: several ranks share the state, and ``consolidate_state_dict()`` has not
                copied it here.
        """
        self.check_between_steps("state_dict()")
        self._check_gathered()
        check_memory_for(self._cache.store.state_bytes, "the optimizer's state")
        with self._cache.alone():  # a step of another thread waits
            self._plain = {parameter: self.read_state(parameter) for parameter in self.stepped()}
            try:
                return super().state_dict()
            finally:
                self._plain = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what ``state_dict()`` of this, or of torch's optimizer, returned. Where several
        ranks share the state, all of them are given the whole, and each keeps its part.

        Raises:
            ValueError: the groups, or a tensor, do not fit, or a kind of state is missing.
            NotImplementedError: the loaded groups have an option that a cache cannot step with.
        """
        self.check_between_steps("load_state_dict()")
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        groups = deepcopy(state_dict["param_groups"])
        loaded = loaded_entries(self, groups, state_dict["state"])
        self._gathered = None
        for group in groups:
            check_group(self.rule, group)
        with self._cache.alone("loaded"):
            take_entries(self, self._cache, loaded, self._trained)
        for group, new in zip(self.param_groups, groups, strict=True):
            new.pop("params")
            group.update(new)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def numbers(self) -> dict[str, int]:
        """The number of steps that each parameter has taken, by name."""
        return {self._names[parameter]: steps for parameter, steps in self.steps.items()}

    def set_numbers(self, numbers: Mapping[str, int]) -> None:
        """Sets what ``numbers()`` returned, when the state that belongs to it is back."""
        by_name = {name: parameter for parameter, name in self._names.items()}
        self.steps = {by_name[name]: steps for name, steps in numbers.items()}
        self._early = None if self._early is None else {}
        self._agreed, self._failure = False, None
        if self.kept is not None:
            self.kept.clear()
        self._gathered = None
        self._state.loaded += 1
