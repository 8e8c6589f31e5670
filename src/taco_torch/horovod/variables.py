"""Numbers in environment variables, and errors that name the variable and its value.

Functions without a state: any thread may call them.
"""

import re
from collections.abc import Mapping


def number(names: tuple[str, ...], given: Mapping[str, str]) -> int | None:
    """The value of the first of these variables that is there; None where none is.

    Raises:
        ValueError: it is no whole number below 10^9.
    """
    for name in names:
        if name not in given:
            continue
        text = given[name]
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise ValueError(f'environment variable {name} is "{text}", but must be a whole number')
        return int(text)
    return None


def check_within(name: str, rank: int, size_name: str, size: int) -> None:
    """ValueError for a rank that there is not among so many."""
    if size < 1 or rank >= size:
        raise ValueError(
            f"{name} is {rank}, but {size_name} is {size}: ranks go from 0 to size - 1"
        )
