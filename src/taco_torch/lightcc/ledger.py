"""The fate of gradients, parameter by parameter, as optimizers, GradScalers and programs tell it.

A backward pass whose gradients nobody applies must leave no trace in what is owed. So from the
moment on at which an optimizer is known to have a parameter, its passes stay undecided until that
optimizer steps, a scaler has it skip, or the program throws the gradients away. Of parameters that
no optimizer has, every pass is taken to be used: their program updates them by itself, and may call
``used()`` and ``dropped()``.

torch's hooks see steps of any optimizer; a few methods of torch's are wrapped. ``p.grad = None`` is
seen at the next pass (csrc/pg/c10d/gradient_watch.h).
"""

import functools
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from taco_torch._extension import _C
from taco_torch.lightcc.once import wrap
from taco_torch.lightcc.settings import scale_of


class Owner(Protocol):
    """The holder of a hook, which says by which scaler its loss is multiplied."""

    grad_scaler: Any


class _Place:
    """A parameter in one hook; neither is kept alive."""

    def __init__(self, native: _C.GradientHook, number: int, owner: Owner) -> None:
        self.native = ref(native)
        self.number = number
        self.owner = ref(owner)


_places: MutableMapping[torch.Tensor, list[_Place]] = WeakIdKeyDictionary()
# Parameters that an optimizer has, or of which the program tells by itself.
_optimized: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()
_known: "WeakSet[torch.optim.Optimizer]" = WeakSet()  # whose parameters are among these
# Hooks of gradients that an optimizer has applied without any scaler.
_unscaled: "WeakSet[_C.GradientHook]" = WeakSet()
# Hooks that go on from a checkpoint, and the owner of each: nobody has stepped yet.
_loaded: "WeakKeyDictionary[_C.GradientHook, ref[Owner]]" = WeakKeyDictionary()
# Optimizers that compute gradients within their step, and whose older ones are thrown away.
_stepping: "WeakKeyDictionary[torch.optim.Optimizer, bool]" = WeakKeyDictionary()


def add(parameter: torch.Tensor, native: _C.GradientHook, number: int, owner: Owner) -> None:
    """``parameter`` is the one that optimizers have."""
    places: list[_Place] = [
        place for place in _places.get(parameter, []) if place.native() is not None
    ]
    places.append(_Place(native, number, owner))
    _places[parameter] = places
    if parameter in _optimized:
        native.tell_of([number])


def _hooks(parameters: Iterable[torch.Tensor]) -> dict[_C.GradientHook, list[int]]:
    """Which hooks know them, by what numbers."""
    found: dict[_C.GradientHook, list[int]] = {}
    for parameter in parameters:
        for place in _places.get(parameter, ()):
            native = place.native()
            if native is not None:
                found.setdefault(native, []).append(place.number)
    return found


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _with_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [p for p in parameters if p.grad is not None]


def _has(parameters: Iterable[torch.Tensor]) -> None:
    """An optimizer has them."""
    new = _without_optimizer(parameters)
    for native, numbers in _hooks(new).items():
        native.forget_untrained(numbers)
    _will_tell(new)


def _without_optimizer(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [p for p in parameters if isinstance(p, torch.Tensor) and p not in _optimized]


def _will_tell(parameters: Iterable[torch.Tensor]) -> None:
    new = _without_optimizer(parameters)
    for parameter in new:
        _optimized[parameter] = True
    for native, numbers in _hooks(new).items():
        native.tell_of(numbers)


def _look_at(optimizer: torch.optim.Optimizer) -> None:
    """It may have been made before ``install()``."""
    if optimizer not in _known:
        _known.add(optimizer)
        _has(_parameters_of(optimizer))


def _used(parameters: Iterable[torch.Tensor]) -> None:
    for native, numbers in _hooks(parameters).items():
        native.used(numbers)


def _skipped(parameters: Iterable[torch.Tensor]) -> None:
    for native, numbers in _hooks(parameters).items():
        native.skipped(numbers)


def _dropped(parameters: Iterable[torch.Tensor]) -> None:
    for native, numbers in _hooks(parameters).items():
        native.dropped(numbers)


def used(parameters: Iterable[torch.Tensor]) -> None:
    """Says that the program has applied these parameters' gradients by itself.

    Where an optimizer has the parameters, only its steps count otherwise. So a program that puts
    gradients aside, to apply them later, says it before it zeroes them. From the first call on,
    this one or ``dropped()``, passes over the parameters wait for the next one, or a step.

    Args:
        parameters: whose gradients have been averaged; as on all other ranks.
    """
    listed = list(parameters)
    _used(listed)
    _will_tell(listed)


def dropped(parameters: Iterable[torch.Tensor]) -> None:
    """Says that the program has thrown these parameters' gradients away: what they were made of is
    owed as if their backward passes had not been. ``zero_grad()`` and ``p.grad = None`` say so by
    themselves where an optimizer has the parameters.

    Args:
        parameters: as for ``used()``.
    """
    listed = list(parameters)
    _dropped(listed)
    _used(listed)  # whatever gradients they may get now: those have no part in these passes
    _will_tell(listed)


# -- optimizers


def _computes_gradients(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    closure = options.get("closure", arguments[1] if len(arguments) > 1 else None)
    return callable(closure)


@_disable_dynamo
def _before_step(
    optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    _look_at(optimizer)
    parameters = _parameters_of(optimizer)
    _note_unscaled(parameters)
    if _computes_gradients(arguments, options):
        _stepping[optimizer] = False
        return _until_it_fails(optimizer, arguments, options)
    found_inf = getattr(optimizer, "found_inf", None)  # of one that is told to skip by itself
    is_skipped = found_inf is not None and bool(found_inf > 0)
    for native, numbers in _hooks(_with_gradients(parameters)).items():
        if is_skipped:
            native.skipped(numbers)
            continue
        aside = native.put_aside(numbers)
        if aside:
            _check_not_applied(native, aside, parameters)
        native.used(numbers)
    return None


def _until_it_fails(
    optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with a closure whose errors end the step: torch tells of no others' end."""
    closure = options["closure"] if "closure" in options else arguments[1]

    @functools.wraps(closure)
    def watched(*given: Any, **named: Any) -> Any:
        try:
            return closure(*given, **named)
        except BaseException:
            _stepping.pop(optimizer, None)
            raise

    if "closure" in options:
        return arguments, {**options, "closure": watched}
    return (arguments[0], watched, *arguments[2:]), options


def _check_not_applied(
    native: _C.GradientHook, dropped: list[int], parameters: list[torch.Tensor]
) -> None:
    """Refuses steps with gradients of passes that count as thrown away: what was sent of them will
    be sent once more. Zeros do no harm."""
    for parameter in parameters:
        gradient, numbers = parameter.grad, _hooks([parameter]).get(native, [])
        if gradient is None or set(numbers).isdisjoint(dropped) or not bool(gradient.any()):
            continue
        raise RuntimeError(
            "an optimizer applies gradients that no backward pass has left where they are, and "
            "lightcc takes those of the last pass to have been thrown away. If these are the same, "
            "put aside before zero_grad(): call lightcc.used(parameters) before that. If they come "
            "from somewhere else: call lightcc.dropped(parameters) before the step"
        )


@_disable_dynamo
def _after_step(
    optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    if _stepping.pop(optimizer, None) is not None:
        _used(_with_gradients(_parameters_of(optimizer)))


def _zeroed(parameters: list[torch.Tensor]) -> None:
    """Within a step that computes gradients again and again, those before have served it."""
    with_gradients = _with_gradients(parameters)
    for optimizer, has_begun in list(_stepping.items()):
        own = {id(p) for p in _parameters_of(optimizer)}
        if has_begun:
            _used(p for p in with_gradients if id(p) in own)
        if any(id(p) in own for p in parameters):
            _stepping[optimizer] = True
    _dropped(with_gradients)


def _wrap_zero_grad(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def zero_grad(self: Any, *arguments: Any, **options: Any) -> None:
        is_optimizer = isinstance(self, torch.optim.Optimizer)
        parameters = _parameters_of(self) if is_optimizer else list(self.parameters())
        if is_optimizer:
            _look_at(self)
        _zeroed(parameters)
        original(self, *arguments, **options)

    return zero_grad


def _wrap_add_param_group(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def add_param_group(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
        original(self, param_group)
        _has(self.param_groups[-1]["params"])

    return add_param_group


# -- scalers


def loaded(native: _C.GradientHook) -> None:
    """Notes that what a checkpoint says goes out with the next gradients, of an unknown scale."""
    for places in list(_places.values()):
        for place in places:
            if place.native() is native:
                _loaded[native] = place.owner
                return


def _note_unscaled(parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        for place in _places.get(parameter, ()):
            native, owner = place.native(), place.owner()
            if native is not None and owner is not None and owner.grad_scaler is None:
                _unscaled.add(native)
                _loaded.pop(native, None)


def _scaled(scaler: Any, parameters: Iterable[torch.Tensor]) -> None:
    """Models with these parameters have their loss multiplied by this scaler."""
    for parameter in parameters:
        for place in _places.get(parameter, ()):
            native, owner = place.native(), place.owner()
            if native is None or owner is None or owner.grad_scaler is scaler:
                continue
            if owner.grad_scaler is not None or native in _unscaled:
                raise RuntimeError(
                    "the gradients of a model that lightcc compresses have had another scale until "
                    "now, and so has what is kept of them. Name a GradScaler that comes later "
                    "before its first backward pass, by lightcc.compress(model, ..., "
                    "grad_scaler=scaler); two at a time are not possible"
                )
            scale = scale_of(scaler)
            assert scale is not None
            for one in _hooks_of(owner, native):
                one.scaled_by(scale)
            owner.grad_scaler = scaler


def _hooks_of(owner: Owner, native: _C.GradientHook) -> list[_C.GradientHook]:
    hooks: Callable[[], list[_C.GradientHook]] | None = getattr(owner, "hooks", None)
    return [native] if hooks is None else hooks()


def _wrap_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, *arguments: Any, **options: Any) -> Any:
        for native, held in list(_loaded.items()) if self.is_enabled() else ():
            owner = held()
            if owner is not None and owner.grad_scaler is None:
                for one in _hooks_of(owner, native):
                    one.change(one.settings, scale_of(self))
                owner.grad_scaler = self
        _loaded.clear()
        return original(self, *arguments, **options)

    return scale


def _found_not_finite(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(value > 0) for value in found.values())


def _wrap_scaler(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps GradScaler's methods that take an optimizer."""
    is_step = original.__name__ == "step"

    @functools.wraps(original)
    def method(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self.is_enabled() or not isinstance(optimizer, torch.optim.Optimizer):
            return original(self, optimizer, *args, **kwargs)
        _look_at(optimizer)
        parameters = _parameters_of(optimizer)
        _scaled(self, parameters)
        result = original(self, optimizer, *args, **kwargs)
        if is_step and _found_not_finite(self, optimizer):
            _skipped(_with_gradients(parameters))
        return result

    return method


def install() -> None:
    """From now on it is known what optimizers have. Called when the first taco group is made."""
    wrap(torch.optim.Optimizer, "add_param_group", _wrap_add_param_group)


_listening = False


def listen() -> None:
    """From now on it is known what becomes of gradients. Called before the first are compressed."""
    global _listening
    if _listening:
        return
    _listening = True
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    wrap(torch.optim.Optimizer, "zero_grad", _wrap_zero_grad)
    wrap(torch.nn.Module, "zero_grad", _wrap_zero_grad)
    wrap(torch.amp.GradScaler, "scale", _wrap_scale)
    wrap(torch.amp.GradScaler, "step", _wrap_scaler)
    wrap(torch.amp.GradScaler, "unscale_", _wrap_scaler)
