"""Numbers for optimizers whose parameters have no names: alike on all ranks, and different for two
whose operations may be under way at once.

They count up, but an optimizer that is made again of the same parameters keeps its number, and so
do those that a training function of ``elastic.run`` makes each time it is called: a rank that has
come later has made them once. The program's thread calls.
"""

from collections.abc import MutableMapping, Sequence

import torch
from torch.utils.weak import WeakIdKeyDictionary

_given = 0  # how many
# The number of the optimizer that a parameter was in last, and its place there.
_places: MutableMapping[torch.Tensor, tuple[int, int]] = WeakIdKeyDictionary()


def number_of(parameters: Sequence[torch.Tensor]) -> int:
    """The number of an optimizer that is being made of these."""
    global _given
    known = [_places.get(parameter) for parameter in parameters]
    first = known[0] if known else None
    if first is not None and known == [(first[0], place) for place in range(len(known))]:
        _given = max(_given, first[0] + 1)
        return first[0]
    number = _given
    _given += 1
    for place, parameter in enumerate(parameters):
        _places[parameter] = (number, place)
    return number


def given() -> int:
    """How many numbers have been given."""
    return _given


def rewind(to: int) -> None:
    """Those from ``to`` on are given again: what had them is not used any more."""
    global _given
    _given = to
