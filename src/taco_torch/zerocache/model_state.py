"""``state_dict()`` and ``load_state_dict()`` of a model whose parameters a cache holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from taco_torch.zerocache.memory import check_memory_for

if TYPE_CHECKING:
    from taco_torch.zerocache.cache import ZeroCache
    from taco_torch.zerocache.hooks import Hooks

EXTRA_STATE = "_extra_state"  # what torch calls it in a state dict


def extra_states(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have state besides parameters and buffers, by name."""
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def without_numpy(value: Any) -> Any:
    """The same with Python's numbers for NumPy's, which ``torch.load(weights_only=True)`` refuses:
    whoever computes a learning rate by NumPy has one in the parameter groups."""
    if type(value) is dict:
        return {without_numpy(key): without_numpy(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(without_numpy(each) for each in value)
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_numpy else value


class ModelState:
    """Hooks by which a state dict has copies of parameters, and loading one writes them.

    Each module copies its own parameters when its turn comes, so not more of them are on the device
    at a time than in a forward pass. Parameters that are tied share a copy, as in torch.
    """

    def __init__(self, cache: ZeroCache, names: Mapping[nn.Parameter, str], hooks: Hooks) -> None:
        self._cache = cache
        self._hooks = hooks
        self._names = names
        self._undo: list[Callable[[], None]] = []
        self._parts: dict[nn.Module, int] = {}
        self._open: list[nn.Module] = []
        # Refers to the state dict that is being collected.
        self._collected: Callable[[], object] = lambda: None
        self._copies: dict[nn.Parameter, Tensor] = {}

    def attach(self, model: nn.Module) -> None:
        """Begins to watch ``model`` and all modules in it."""
        kind: Any = nn.Module  # as of Hooks: ScriptModules refuse their own methods
        refuse = kind._register_load_state_dict_pre_hook(model, _refuse_other_parameters, True)
        self._undo += [
            kind.register_state_dict_pre_hook(model, self._check_memory).remove,
            refuse.remove,
        ]
        for module in model.modules():
            own = {
                name: parameter
                for name, parameter in module.named_parameters(recurse=False)
                if parameter in self._names
            }
            if not own:
                continue
            self._parts[module] = self._cache.store.add_part(
                [self._names[parameter] for parameter in own.values()]
            )
            collect = partial(self._collect, own)
            self._undo += [
                kind.register_state_dict_post_hook(module, collect).remove,
                kind._register_load_state_dict_pre_hook(module, self._before_load, True).remove,
                kind.register_load_state_dict_post_hook(module, self._after_load).remove,
            ]

    def detach(self) -> None:
        """Takes the hooks off."""
        while self._undo:
            self._undo.pop()()

    def _check_memory(self, _: nn.Module, __: str, keep_vars: bool) -> None:
        if keep_vars:  # nothing is copied
            return
        check_memory_for(self._cache.store.parameter_bytes, "the model's state dict")

    def _collect(
        self,
        own: Mapping[str, nn.Parameter],
        module: nn.Module,
        state_dict: Any,
        prefix: str,
        _: Any,
    ) -> None:
        if self._collected() is not state_dict:
            self._copies = {}
            # A plain dict, which somebody may have given as the destination, cannot be watched.
            watched = type(state_dict) is not dict
            self._collected = weakref.ref(state_dict, self._forget) if watched else lambda: None
        for name in own:
            key, parameter = prefix + name, getattr(module, name)
            held = state_dict.get(key)
            # A caller that wants variables (keep_vars) gets the parameters themselves.
            if parameter not in self._names or held is None or held is parameter:
                continue
            if parameter not in self._copies:
                self._copies[parameter] = self._cache.full(parameter)
            state_dict[key] = self._copies[parameter]

    def _forget(self, _: object) -> None:
        self._copies = {}

    def _before_load(
        self,
        module: nn.Module,
        values: Mapping[str, Any],
        prefix: str,
        metadata: Mapping[str, Any],
        *_: Any,
    ) -> None:
        _refuse_other_parameters(module, values, prefix, metadata)
        if not self._open:
            self._hooks.end_left_over(loading=True)
        if self._cache.store.open == 0:
            self._open.clear()  # an exception may have ended an earlier call
        self._cache.store.begin(self._parts[module], False)
        self._open.append(module)

    def _after_load(self, module: nn.Module, _: Any) -> None:
        if module in self._open:
            self._open.remove(module)
            self._cache.store.end(self._parts[module], False)


def _refuse_other_parameters(
    module: nn.Module, _: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], *__: Any
) -> None:
    """Raises ValueError where a load would give a module other parameters, before it changes any
    value."""
    if metadata.get("assign_to_params_buffers", False):
        how, remedy = "load_state_dict(assign=True) would replace", "leave assign=False"
    elif torch.__future__.get_swap_module_params_on_conversion():
        how = "load_state_dict() would swap"
        remedy = "call torch.__future__.set_swap_module_params_on_conversion(False) before"
    else:
        return
    where = prefix.rstrip(".") or type(module).__name__
    raise ValueError(f"{how} the parameters of '{where}', which the cache holds: {remedy}")
