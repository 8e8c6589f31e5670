"""Which optimizers a cache steps, with which options, and what state each keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from taco_torch._extension import _C
from taco_torch.zerocache.lion import Lion

Group = Mapping[str, Any]


class Rule(NamedTuple):
    """How one class of optimizers is stepped."""

    name: str
    # Kinds of state, as torch names them, that parameters of these groups keep.
    kinds: Callable[[list[dict[str, Any]]], tuple[str, ...]]
    # The constants of a step, from the group, the step's number, counted from 1, the parameter, and
    # the factor of its gradient.
    constants: Callable[[Group, int, Tensor, float], Any]
    # Options that are refused where they are set, with what to do instead.
    refused: Mapping[str, str]
    # Whether a parameter's state has its number of steps.
    counts: bool
    # State that is smaller than its parameter: kinds with their shapes, by the parameter.
    moments: Callable[[Tensor], dict[str, tuple[int, ...]]] = lambda _: {}
    # By what the constants of parameters of one group and number differ.
    differs: Callable[[Tensor], Any] = lambda _: None


def _signed(factor: float, group: Group) -> float:
    return -factor if group.get("maximize") else factor


def _adam(decoupled: bool) -> Callable[[Group, int, Tensor, float], Any]:
    def constants(group: Group, step: int, _: Tensor, factor: float) -> Any:
        beta1, beta2 = group["betas"]
        return _C.zerocache.adam_step(
            step,
            _signed(factor, group),
            lr=float(group["lr"]),
            beta1=float(beta1),
            beta2=float(beta2),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            decoupled=group.get("decoupled_weight_decay", decoupled),
        )

    return constants


def _sgd(group: Group, step: int, _: Tensor, factor: float) -> Any:
    return _C.zerocache.sgd_step(
        step,
        _signed(factor, group),
        lr=float(group["lr"]),
        momentum=float(group["momentum"]),
        dampening=float(group["dampening"]),
        weight_decay=float(group["weight_decay"]),
        nesterov=bool(group["nesterov"]),
    )


def _lion(group: Group, step: int, _: Tensor, factor: float) -> Any:
    beta1, beta2 = group["betas"]
    return _C.zerocache.lion_step(
        _signed(factor, group),
        lr=float(group["lr"]),
        beta1=float(beta1),
        beta2=float(beta2),
        weight_decay=float(group["weight_decay"]),
    )


def matrices_of(parameter: Tensor) -> tuple[int, int, int]:
    """A parameter as Adafactor sees it: matrices, rows, columns; without rows, a vector."""
    if parameter.dim() < 2:
        return 1, 0, parameter.numel()
    rows, columns = parameter.shape[-2:]
    return parameter.numel() // (rows * columns), rows, columns


def _adafactor(group: Group, step: int, parameter: Tensor, factor: float) -> Any:
    eps1, eps2 = group["eps"]
    return _C.zerocache.adafactor_step(
        step,
        _signed(factor, group),
        matrices_of(parameter),
        parameter.dtype == torch.bfloat16,
        lr=float(group["lr"]),
        beta2_decay=float(group["beta2_decay"]),
        eps1=-1.0 if eps1 is None else float(eps1),
        eps2=float(eps2),
        clip=float(group["d"]),
        weight_decay=float(group["weight_decay"]),
    )


def _adafactor_moments(parameter: Tensor) -> dict[str, tuple[int, ...]]:
    shape = tuple(parameter.shape)
    if len(shape) < 2:
        return {"variance": shape}
    return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}


def _sgd_kinds(groups: list[dict[str, Any]]) -> tuple[str, ...]:
    return ("momentum_buffer",) if any(group["momentum"] for group in groups) else ()


_REFUSED = {
    "capturable": "steps are not captured in CUDA graphs: leave capturable=False",
    "differentiable": "steps cannot be differentiated: leave differentiable=False",
}
_REFUSED_BY_ADAM = {
    "amsgrad": "a running maximum is not kept: leave amsgrad=False",
    **_REFUSED,
}
_MOMENTS = ("exp_avg", "exp_avg_sq")

RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.AdamW: Rule("AdamW", lambda _: _MOMENTS, _adam(True), _REFUSED_BY_ADAM, True),
    torch.optim.Adam: Rule("Adam", lambda _: _MOMENTS, _adam(False), _REFUSED_BY_ADAM, True),
    torch.optim.SGD: Rule("SGD", _sgd_kinds, _sgd, _REFUSED, False),
    torch.optim.Adafactor: Rule(
        "Adafactor",
        lambda _: (),
        _adafactor,
        _REFUSED,
        True,
        _adafactor_moments,
        lambda parameter: (parameter.shape, parameter.dtype),
    ),
    Lion: Rule("Lion", lambda _: ("exp_avg",), _lion, _REFUSED, False),
}


def check_group(rule: Rule, group: Group) -> None:
    """Raises NotImplementedError where a group asks for what is not done here."""
    for option, remedy in rule.refused.items():
        if group.get(option):
            raise NotImplementedError(
                f"{rule.name}({option}={group[option]!r}) cannot be stepped by a cache: {remedy}"
            )


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """How ``optimizer`` is stepped.

    Raises:
        TypeError: it is no optimizer.
        NotImplementedError: names a class, or an option, that the cache cannot step. Subclasses
            are refused: what they do in their own step() would not be done.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is no torch.optim.Optimizer")
    rule = RULES.get(type(optimizer))
    if rule is None:
        kind = type(optimizer)
        known = ", ".join(each.name for each in RULES.values())
        raise NotImplementedError(
            f"{kind.__module__}.{kind.__qualname__} cannot be stepped by a cache, which knows "
            f"{known} (of torch.optim; Lion of taco_torch.zerocache). With its state in ordinary "
            f"memory it works as it is: wrap(model) without it, and optimizer.step() inside "
            f"`with cache.lend():`"
        )
    for group in optimizer.param_groups:
        check_group(rule, group)
    return rule
