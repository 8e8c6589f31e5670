"""The nodes of autograd's graph that a module has made, as far as its results lead to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

LEAF_NUMBER = 2**64 - 1  # of nodes that accumulate the gradient of a leaf: they belong to no module


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in what a module returned: in containers, dataclasses and whatever pytree knows."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name, None))
    elif value is not None and type(value) in pytree.SUPPORTED_NODES:
        for leaf in pytree.tree_leaves(value):
            yield from tensors_in(leaf) if leaf is not value else ()


def made_since(node: Node | None, first: int) -> bool:
    return node is not None and first <= node._sequence_nr() != LEAF_NUMBER


def entries(tensors: Iterable[Tensor], first: int) -> list[Node]:
    """The nodes by which a backward pass can enter what was computed since number ``first``."""
    found: dict[Node, None] = {}
    for tensor in tensors:
        # An in-place operation on a view gives it another node, and goes on to that of its base.
        for one in (tensor, tensor._base) if tensor._is_view() else (tensor,):
            node = one.grad_fn if one is not None else None
            if node is not None and made_since(node, first):
                found[node] = None
    return list(found)


def nodes_since(starts: Iterable[Node], first: int) -> list[Node]:
    """All nodes from ``starts`` downwards that were made since number ``first``."""
    found = dict.fromkeys(starts)
    waiting = list(found)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found and made_since(node, first):
                found[node] = None
                waiting.append(node)
    return list(found)


def lowest(nodes: Iterable[Node]) -> Node:
    return min(nodes, key=lambda node: node._sequence_nr())
