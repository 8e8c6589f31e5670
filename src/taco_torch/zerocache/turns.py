"""Which thread uses a model: one at a time, and a second one is told so.

A use that an exception has left open belongs to nobody: its thread is inside of no call that would
end it. Whoever comes next ends it first.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch import nn
from torch.autograd.graph import _engine_run_backward

from taco_torch._extension import _C

LOADING = nn.Module.load_state_dict.__code__
MODULE_CALLS = (
    nn.Module._call_impl.__code__,
    nn.Module._wrapped_call_impl.__code__,
    LOADING,
)


class Turns:
    """The turns that threads take with one model."""

    def __init__(self, used_by_hand: Callable[[], bool]) -> None:
        # Held while a thread is inside of the store: others wait.
        self.lock = threading.RLock()
        self._used_by_hand = used_by_hand  # inside of ZeroCache.use()
        self._owner: int | None = None  # the thread that began to use the model last
        self._modules: Any = weakref.WeakSet()
        self._process = os.getpid()

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """These are the model."""
        self._modules.update(modules)

    def take(self, what: str = "used") -> None:
        """This thread begins to use the model.

        Raises RuntimeError where another is in the middle of that.
        """
        if not self.is_mine():
            self.check(what)
            self._owner = threading.get_ident()

    def is_mine(self) -> bool:
        """Whether this thread uses the model, or belongs to the engine of autograd, which computes
        a part of a backward pass for the thread that does. Or to a forked child, which has no other
        thread."""
        me = threading.get_ident()
        if self._owner == me or self._process != os.getpid():
            return True
        return not any(
            thread.ident == me and not isinstance(thread, threading._DummyThread)
            for thread in threading.enumerate()
        )

    @staticmethod
    def check_handler() -> None:
        """Raises RuntimeError in a handler of a signal that came while this thread waits for other
        ranks: what it waits in, inside of the store, is in the middle of its work."""
        if _C.zerocache.waits_here():
            raise RuntimeError(
                "a handler of a signal cannot use a cache that waits for other ranks, in the "
                "middle of a step for example: have it note the signal, and act on that between "
                "two steps"
            )

    def check_trains(self, call: str) -> None:
        """Raises RuntimeError where another thread than this has used the model last: ranks make
        this call together, and only that thread is at the same step on all of them."""
        if self._owner is not None and not self.is_mine():
            raise RuntimeError(
                f"{call} by thread '{threading.current_thread().name}', where another trains the "
                f"model: ranks make this call together, between the same steps; call it in the "
                f"thread that trains"
            )

    def is_inside(self, loading: bool = False) -> bool:
        """Whether the thread that used the model last still does, or has parameters in use;
        ``loading``: but for load_state_dict()."""
        frame: FrameType | None = sys._current_frames().get(self._owner or 0)
        if frame is None:
            return False
        if self._used_by_hand():
            return True
        while frame is not None:
            if frame.f_code is _engine_run_backward.__code__:
                return True
            is_call = frame.f_code in MODULE_CALLS and not (loading and frame.f_code is LOADING)
            if is_call and frame.f_locals.get("self") in self._modules:
                return True
            frame = frame.f_back
        return False

    def is_inside_here(self) -> bool:
        """Whether the thread that asks is in the middle of a call of one of the model's modules."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            is_call = frame.f_code in MODULE_CALLS and frame.f_code is not LOADING
            if is_call and frame.f_locals.get("self") in self._modules:
                return True
            frame = frame.f_back
        return False

    def check(self, what: str) -> None:
        """Raises RuntimeError where another thread is in the middle of using the model."""
        if self._owner is None or self.is_mine() or not self.is_inside():
            return
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        raise RuntimeError(
            f"the model of this cache is in use by thread '{names.get(self._owner, self._owner)}', "
            f"and cannot be {what} by '{threading.current_thread().name}' meanwhile: a cache "
            f"serves one thread at a time. Have threads take turns: one threading.Lock() around "
            f"all calls of the model, backward() and optimizer.step()"
        )
