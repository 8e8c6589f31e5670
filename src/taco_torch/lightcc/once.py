"""Things to do once in a process: to say something, and to wrap a function of torch."""

from collections.abc import Callable
from typing import Any

from taco_torch._extension import _C

_said: set[str] = set()
_wrapped: set[tuple[Any, str]] = set()


def say_once(text: str) -> None:
    """Writes to the log, as INFO."""
    if text not in _said:
        _said.add(text)
        _C.log_info("lightcc", text)


def wrap(
    owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Puts ``wrapper(original)`` into the place of a function of a class or module."""
    if (owner, name) in _wrapped:
        return
    original = getattr(owner, name)
    _wrapped.add((owner, name))
    setattr(owner, name, wrapper(original))
