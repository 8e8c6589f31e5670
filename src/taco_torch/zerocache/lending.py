"""Parameters for operators of torch that no hook has announced.

A module announces its own parameters (hooks.py), and what its nodes in the autograd graph read of
them. A model may read others: a parent its child's weight, a module what another has returned, a
backward pass what was left on ``self``, a gradient's hook the weight. Inside of a call of a module,
or of a backward pass, an operator that is given an absent parameter is lent it for as long as it
runs. So whatever such a program does, it reads what torch would read; what is lent again and again
is as any other use for the scheduler, which has it back in time.

Outside of both, a parameter that is not announced stays absent, and says so; a program asks for
what it is lent there, by ``ZeroCache.lend()``.

An operator of another thread than that which uses the model may be given a parameter that is there
just now. While it runs no use begins or ends, so it is there all the time, or not at all.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from taco_torch._extension import _C
from taco_torch.zerocache.hooks import NO_TASK, Hooks, current_task


class Lock(Protocol):
    """As threading's: held by one thread, more than once."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...


_lenders: Any = weakref.WeakSet()
_change = threading.Lock()


class Lender:
    """Lends the parameters of one store. ``is_stepped`` says whether the backward pass under way
    has stepped one already."""

    def __init__(
        self,
        store: Any,
        hooks: Hooks,
        parameters: Iterable[nn.Parameter],
        is_stepped: Callable[[nn.Parameter], bool],
    ) -> None:
        self.store = store
        self._hooks = hooks
        self._by_part: dict[int, list[nn.Parameter]] = {}  # those whose memory is tied share one
        for parameter in parameters:
            self._by_part.setdefault(store.part_of(parameter), []).append(parameter)
        self._is_stepped = is_stepped
        self._anywhere: list[int] = []  # threads inside of anywhere()
        with _change:
            _lenders.add(self)
            _C.zerocache.begin_lending(_lend, _take_back)

    def detach(self) -> None:
        """Lends no more."""
        self._by_part.clear()
        with _change:
            if self in _lenders:
                _lenders.remove(self)
                _C.zerocache.end_lending()

    @contextmanager
    def anywhere(self) -> Iterator[None]:
        """Inside, this thread's operators are lent what they are given wherever they run."""
        self._hooks.turns.take()
        self._hooks.end_left_over()
        thread = threading.get_ident()
        self._anywhere.append(thread)
        try:
            yield
        finally:
            self._anywhere.remove(thread)

    def _is_inside(self) -> bool:
        return threading.get_ident() in self._anywhere or self._hooks.turns.is_inside_here()

    def lend(
        self, tensor: Tensor, part: int, operands: Sequence[Tensor], whole: bool
    ) -> Loan | None:
        """``tensor``, which is on the parameter of ``part``, for an operator that is given
        ``operands``, itself among them. None: it stays absent."""
        in_backward = current_task() != NO_TASK
        if not in_backward and not self._is_inside():
            return None
        if in_backward and any(map(self._is_stepped, self._by_part.get(part, ()))):
            self.store.say_why(tensor, STEPPED)
            return None
        try:
            self._hooks.turns.take()
            try:
                self._hooks.begin(part, in_backward)
            except ValueError:
                return self._lend_alone(tensor, operands, whole)
        except Exception as error:
            self.store.say_why(tensor, str(error))
            return None
        return Loan(self, tensor, part, in_backward)

    def _lend_alone(self, tensor: Tensor, operands: Sequence[Tensor], whole: bool) -> Loan:
        """There is no room beside what others have in use. While the operator runs, its thread
        reads nothing but what that is given, and where this is a part of a parameter, others
        wait."""
        part = self.store.part_of_operands(operands, whole)
        waiting = None if whole else Hold(self._hooks.turns.lock)
        try:
            self._hooks.begin_alone(part)
        except BaseException:
            if waiting is not None:
                waiting.end()
            raise
        return Loan(self, tensor, part, False, waiting)

    def is_of_another_thread(self) -> bool:
        """Whether another thread than this uses the model."""
        return not self._hooks.turns.is_mine()

    def hold(self) -> Hold:
        """Until it ends, no other thread begins or ends a use."""
        return Hold(self._hooks.turns.lock)

    def take_back(self, part: int, backward: bool) -> None:
        """The operator has ended."""
        self._hooks.end(part, backward)


STEPPED = (
    "this backward pass has stepped it already (step_in_backward=True), and now reads it once more "
    "by w.data, w.detach() or in a hook: read it through w, or leave step_in_backward=False"
)


class Hold:
    """Keeps other threads from beginning and ending uses, for as long as an operator runs."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        lock.acquire()

    def end(self) -> None:
        """The operator has ended."""
        self._lock.release()


class Loan:
    """A parameter that an operator has. ``waiting``: has others wait for it."""

    def __init__(
        self,
        lender: Lender,
        tensor: Tensor,
        part: int,
        backward: bool,
        waiting: Hold | None = None,
    ) -> None:
        self._lender = lender
        self._tensor = tensor
        self._use = part, backward
        self._waiting = waiting
        self._version = None if tensor.is_inference() else tensor._version

    def end(self) -> None:
        """Takes it back; a change that the operator has made is noted."""
        try:
            if self._version is None or self._version != self._tensor._version:
                self._lender.store.note_change(self._tensor)
            self._lender.take_back(*self._use)
        finally:
            if self._waiting is not None:
                self._waiting.end()


def _lend(
    wanted: Sequence[Tensor], operands: Sequence[Tensor], whole: bool
) -> list[Loan | Hold] | None:
    """For an operator that is about to run with these operands, of which some are absent, or there
    for another thread. ``whole``: it may read more of their parameters than is below them."""
    lenders = sorted(_lenders, key=id)  # in one order: two threads may hold several
    loans: list[Loan | Hold] = [
        lender.hold()
        for lender in lenders
        if any(map(lender.store.holds, wanted)) and lender.is_of_another_thread()
    ]
    for tensor in wanted:
        if not _C.zerocache.is_absent(tensor):  # it was given twice, or is there with another
            continue
        for lender in lenders:
            part = lender.store.part_of(tensor)
            loan = lender.lend(tensor, part, operands, whole) if part is not None else None
            if loan is not None:
                loans.append(loan)
    return loans or None


def _take_back(loans: list[Loan | Hold]) -> None:
    for loan in reversed(loans):
        loan.end()
