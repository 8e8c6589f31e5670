"""Finds what has to be on the device at once, and the parameters that no cache can hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from taco_torch._extension import _C
from taco_torch.zerocache.hooks import called_children, own_parameters
from taco_torch.zerocache.rules import Rule
from taco_torch.zerocache.sizes import format_bytes

TRAINED_DTYPES = (torch.float32, torch.bfloat16)


def groups_at_once(
    model: nn.Module, held: Mapping[nn.Parameter, object]
) -> Iterator[frozenset[nn.Parameter]]:
    """For each module, the parameters that are in use while it runs: its own, and those of the
    modules that it is inside of."""

    def visit(
        module: nn.Module, above: frozenset[nn.Parameter]
    ) -> Iterator[frozenset[nn.Parameter]]:
        own = {parameter for parameter in own_parameters(module) if parameter in held}
        here = above | own
        if here:
            yield here
        for child in called_children(module):
            yield from visit(child, here)

    return visit(model, frozenset())


def names_of(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter that has elements, the first of them first."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.numel() > 0:
            names.setdefault(parameter, []).append(name)
    return names


def check_parameters(
    store: Any,
    names: Mapping[nn.Parameter, list[str]],
    groups: list[dict[str, object]],
    rule: Rule | None,
) -> set[nn.Parameter]:
    """The parameters that are trained.

    Raises:
        TypeError: a parameter has a dtype that is not stepped, or memory that cannot be moved.
        ValueError: the optimizer has parameters that the model has not, or one of them twice; or
            one has no name that a cache can use, such as that of another's state.
    """
    _check_names(names)
    trained: set[nn.Parameter] = set()
    for number, group in enumerate(groups):
        _check_given_once(number, group["params"], names)  # type: ignore[arg-type]
        for index, parameter in enumerate(group["params"]):  # type: ignore[var-annotated, arg-type]
            if parameter.numel() > 0 and parameter not in names:
                raise ValueError(
                    f"the optimizer's group {number} has a parameter (number {index}, of shape "
                    f"{tuple(parameter.shape)}) that the model has not: make the optimizer of "
                    f"model.parameters()"
                )
            if parameter.numel() > 0 and parameter.requires_grad:
                trained.add(parameter)
    for parameter, (name, *_) in names.items():
        if parameter in trained and parameter.dtype not in TRAINED_DTYPES:
            raise TypeError(
                f"parameter '{name}' is {parameter.dtype}: a cache trains float32 and bfloat16 "
                f"(frozen parameters may have any dtype)"
            )
        if rule is not None and rule.moments(parameter) and not parameter.is_contiguous():
            raise TypeError(
                f"parameter '{name}' is not contiguous: {rule.name} needs its rows one after the "
                f"other; p.data = p.data.contiguous() makes them so"
            )
        if not store.holds(parameter):
            _C.zerocache.check_placeable(name, parameter)
    return trained


def may_be_trained(
    names: Mapping[nn.Parameter, list[str]],
    groups: list[dict[str, Any]],
    rule: Rule | None,
    trained: set[nn.Parameter],
) -> set[nn.Parameter]:
    """Parameters of the optimizer that are frozen now, and can have state of the kinds that the
    others have once the program unfreezes them. Until then that takes no memory."""
    dtypes = {parameter.dtype for parameter in trained} | {torch.float32}
    return {
        parameter
        for group in groups
        for parameter in group["params"]
        if parameter in names
        and parameter not in trained
        and parameter.dtype in dtypes
        and rule is not None
        and not rule.moments(parameter)
    }


def _check_names(names: Mapping[nn.Parameter, list[str]]) -> None:
    """State lies beside parameters, in pages and in checkpoints, under names of its own."""
    all_names = dict.fromkeys(name for own in names.values() for name in own)
    for name in all_names:
        if "\0" in name or name != name.encode(errors="replace").decode():
            raise ValueError(
                f"parameter {name!a} has a character in its name that cannot be in messages and "
                f"files (NUL, or half of a surrogate pair): give it another name"
            )
        other = _C.zerocache.parameter_of_state(name)
        if other in all_names:
            raise ValueError(
                f"parameter '{name}' is called as the optimizer's state of parameter '{other}' is "
                f"in a cache: give one of them another name (an attribute of its module, or a key "
                f"of a ParameterDict)"
            )


def _check_given_once(
    number: int, parameters: list[nn.Parameter], names: Mapping[nn.Parameter, list[str]]
) -> None:
    """torch warns of a parameter that a group has twice, and steps it twice."""
    counts = Counter(parameters)
    for parameter, count in counts.items():
        if count > 1:
            name = names.get(parameter, [f"of shape {tuple(parameter.shape)}"])[0]
            raise ValueError(
                f"the optimizer's group {number} has parameter '{name}' {count} times, and would "
                f"step it as often: give it once (list(dict.fromkeys(parameters)))"
            )


def check_room(
    store: Any,
    model: nn.Module,
    names: Mapping[nn.Parameter, list[str]],
    trained: set[nn.Parameter],
    kinds: tuple[str, ...],
    rule: Rule | None,
    gradients: str,
    ranks: int,
    spread: bool,
) -> None:
    """Raises ValueError where the capacities are too small for ``model``: for the most that is
    needed at once, or for all of it that one of the ranks keeps; says how large they have to be.
    ``gradients`` that are final stay "in memory", are "stepped", "kept" on pages, or "averaged";
    ``spread``: each rank keeps a part of the parameters, too."""
    numbers = {parameter: number for number, parameter in enumerate(names)}
    planned = [
        (
            own[0],
            parameter.numel() * parameter.element_size(),
            parameter.element_size(),
            parameter in trained,
            False,
        )
        for parameter, own in names.items()
    ]
    if rule is not None:
        planned += [
            (f"{own[0]}/{kind}", 4 * math.prod(shape), 4, False, True)
            for parameter, own in names.items()
            if parameter in trained
            for kind, shape in rule.moments(parameter).items()
        ]
    groups = sorted(groups_at_once(model, names), key=_bytes_of, reverse=True)
    needed = [sorted(numbers[parameter] for parameter in group) for group in groups]
    try:
        store.check_room(planned, list(kinds), needed, gradients, ranks, spread)
    except ValueError as error:
        largest = groups[0] if groups else frozenset()
        first = min(largest, key=numbers.__getitem__, default=None)
        hint = (
            f" (the most that one module needs is {format_bytes(_bytes_of(largest))}, "
            f"'{names[first][0]}' among it)"
            if first is not None
            else ""
        )
        raise ValueError(f"this model does not fit into the cache: {error}{hint}") from None


def _bytes_of(group: frozenset[nn.Parameter]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in group)
