"""A strict reading of data that was parsed from YAML or JSON: every key must be known where it
stands, and every value has its type.

A schema is one of

    str, bool, int          a value of just this type (True is no int)
    re.compile(...)         a string that matches as a whole
    "a | b"                 one of these strings
    [schema]                a list, each element of which fits
    Object(...)             a mapping with known keys
    Either(a, b)            what fits one of several schemas
    Checked(schema, check)  what fits, and about which check(value) has no complaint
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml


@dataclass(frozen=True)
class Object:
    """A mapping: `fields` may be there, those that `required` names (separated by blanks) must."""

    fields: Mapping[str, Any]
    required: str = ""


@dataclass(frozen=True)
class Either:
    first: Any
    second: Any


@dataclass(frozen=True)
class Checked:
    schema: Any
    check: Callable[[Any], list[str]] = field(compare=False)


def problems(value: Any, schema: Any, path: str = "") -> Iterator[str]:
    """Complaints about a value, each with the path of what it is about."""
    where = path or "(root)"
    if isinstance(schema, Object):
        yield from _problems_of_mapping(value, schema, path)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield f"{where} is {value!r}, but must be a list"
            return
        for index, element in enumerate(value):
            yield from problems(element, schema[0], f"{path}[{index}]")
    elif isinstance(schema, Either):
        first = list(problems(value, schema.first, path))
        if first and list(problems(value, schema.second, path)):
            yield from first
    elif isinstance(schema, Checked):
        wrong = list(problems(value, schema.schema, path))
        yield from wrong or (f"{where}: {text}" for text in schema.check(value))
    elif isinstance(schema, str):
        if value not in schema.split(" | ") or not isinstance(value, str):
            yield f"{where} is {value!r}, but must be one of {schema}"
    elif isinstance(schema, re.Pattern):
        if not isinstance(value, str) or not schema.fullmatch(value):
            yield f"{where} is {value!r}, which does not match {schema.pattern}"
    elif type(value) is not schema:
        yield f"{where} is {value!r}, but must be of type {schema.__name__}"


def _problems_of_mapping(value: Any, schema: Object, path: str) -> Iterator[str]:
    where = path or "(root)"
    if not isinstance(value, dict):
        yield f"{where} is {value!r}, but must be a mapping"
        return
    for key in schema.required.split():
        if key not in value:
            yield f"{where} has no {key}"
    for key, element in value.items():
        inner = f"{path}.{key}" if path else str(key)
        if key not in schema.fields:
            yield f"{inner}: there is no such key; there are {', '.join(schema.fields)}"
        else:
            yield from problems(element, schema.fields[key], inner)


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error, where others take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def documents(text: str) -> list[Any]:
    """The documents of a YAML text, without empty ones."""
    return [each for each in yaml.load_all(text, _Loader) if each is not None]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside, as keys and indices."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, element in pairs:
            yield (*path, key)
            yield from places(element, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
