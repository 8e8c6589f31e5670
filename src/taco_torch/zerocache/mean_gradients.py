"""Gradients that ranks average in the backward pass, where each of them has all parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taco_torch.errors import MismatchError
from taco_torch.zerocache.averaged_gradients import MAX_UNDER_WAY, AveragedGradients
from taco_torch.zerocache.backward import FinalGradients
from taco_torch.zerocache.hooks import NO_TASK, Hooks
from taco_torch.zerocache.optimizer import CachedOptimizer
from taco_torch.zerocache.ranks import Ranks

# Announcements that are not the number of a gradient.
END, LEFT, BEGIN, STEP, CALL = -1, -2, -3, -4, -5
WORDS = {
    END: "has no more",
    LEFT: "has left its backward pass by an exception",
    BEGIN: "begins a backward pass",
    STEP: "takes a step",
    CALL: "makes another call of the cache",
}


class Announced(NamedTuple):
    """An announcement: all ranks make it before they do together what it says."""

    number: int  # of a parameter, or one of the above
    gradient: Tensor | None
    told: Tensor  # the number of each rank
    work: Any


class Reduced(NamedTuple):
    """A gradient that is being added up."""

    parameter: nn.Parameter
    gradient: Tensor
    summed: Tensor  # contiguous
    work: Any


class MeanGradients(FinalGradients):
    """Has ranks average a gradient as soon as it is final, and the optimizer take the mean.

    By one all_reduce for each parameter, and a division by the number of ranks, as a program does
    that averages them itself: these are the same bits. Before ranks add anything up they tell each
    other which gradient it is; so where their programs part, all of them raise, and nothing is
    mixed up. A gradient is announced while the next one is computed, and its sum is on its way
    during the one after that.

    Whatever else ranks do together they announce too, and so does a rank that an exception has
    taken out of a pass, when it next comes to one of these points: the others, wherever they are in
    that pass, hear of it. All of them have averaged the same gradients by then, and end the step
    of that pass together.
    """

    def __init__(
        self,
        optimizer: CachedOptimizer,
        parameters: Iterable[nn.Parameter],
        gradients: str,
        ranks: Ranks,
    ) -> None:
        self._trained = list(parameters)
        self._numbers = {parameter: i for i, parameter in enumerate(self._trained)}
        self._ranks = ranks
        self._steps_now = gradients == "stepped"
        self._announced: Announced | None = None
        self._under_way: deque[Reduced] = deque()
        self._averaged = AveragedGradients()
        self._open = False  # a pass has begun on all ranks that has not ended on any, as they know
        super().__init__(optimizer, self._trained, gradients)
        optimizer.means = self

    def detach(self) -> None:
        """Like FinalGradients."""
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.means = None
        self._ranks.before_call = lambda: None
        super().detach()

    def _accumulated(self, parameter: Tensor) -> None:
        optimizer = self._optimizer()
        if optimizer is None or self._accumulating > 0 or not self._final():
            return
        assert isinstance(parameter, nn.Parameter)
        begins = self._pass != self._task
        if begins:
            optimizer.end_interrupted()
        optimizer.check_not_taken(parameter)
        if begins:
            self._begin_pass(optimizer)
            Hooks.at_end_of_task(partial(self._end_pass, optimizer))
            self._pass = self._task
        self._average(optimizer, parameter)

    def _begin_pass(self, optimizer: CachedOptimizer) -> None:
        self._barrier(optimizer, BEGIN)
        self._averaged = AveragedGradients()
        if self._steps_now:
            optimizer.agree_on_early(p for p in self._trained if p.requires_grad)
        self._open = True

    def leave_pass(self) -> None:
        """Where an exception has ended a pass on this rank, the others hear of it. All of them have
        taken the same gradients then, and are about to end the step of that pass."""
        optimizer = self._optimizer()
        if not self._open or optimizer is None:
            return
        try:
            with suppress(MismatchError):  # others have left it elsewhere, or are in it
                self._begin_announced(optimizer)
                self._barrier(optimizer, LEFT)
            self._close(optimizer)
        finally:
            self._open, self._announced = False, None
            self._under_way.clear()

    def _close(self, optimizer: CachedOptimizer) -> None:
        """The pass is over, for all ranks at once."""
        self._open, self._pass = False, NO_TASK
        while self._under_way:
            self._take(optimizer, self._under_way.popleft())

    def _before_call(self) -> None:
        """All ranks are about to use the group for something else."""
        self.leave_pass()
        optimizer = self._optimizer()
        if optimizer is not None:
            self._barrier(optimizer, CALL)

    def _barrier(self, optimizer: CachedOptimizer, number: int) -> None:
        self._make_room(optimizer)
        self._announce(number, None)
        self._begin_announced(optimizer)
        # From the first time on, which is that of all ranks.
        self._ranks.before_call = self._before_call

    def _average(self, optimizer: CachedOptimizer, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        self._begin_announced(optimizer)
        self._make_room(optimizer)
        self._announce(self._numbers[parameter], gradient)

    def _make_room(self, optimizer: CachedOptimizer) -> None:
        while len(self._under_way) >= MAX_UNDER_WAY:
            self._take(optimizer, self._under_way.popleft())

    def _announce(self, number: int, gradient: Tensor | None) -> None:
        told = torch.empty(self._ranks.size, dtype=torch.int64, device="cpu")
        own = torch.tensor([number], dtype=torch.int64, device="cpu")
        work = dist.all_gather_into_tensor(told, own, group=self._ranks.group, async_op=True)
        self._announced = Announced(number, gradient, told, (work, own))

    def _begin_announced(self, optimizer: CachedOptimizer) -> None:
        """Begins what was announced, if all ranks have announced the same. Else all of them raise
        MismatchError, and a pass that has begun is over for all."""
        announced = self._announced
        if announced is None:
            return
        announced.work[0].wait()
        self._announced = None
        if not announced.told.eq(announced.number).all():
            parted = self._parted(optimizer, announced.told.tolist())
            if self._open:
                self._close(optimizer)
            raise parted
        if announced.gradient is None:
            return
        summed = announced.gradient.contiguous()
        work = dist.all_reduce(summed, group=self._ranks.group, async_op=True)
        parameter = self._trained[announced.number]
        self._under_way.append(Reduced(parameter, announced.gradient, summed, work))

    def _parted(self, optimizer: CachedOptimizer, told: list[int]) -> MismatchError:
        def described(rank: int) -> str:
            number = told[rank]
            if number in WORDS:
                return f"rank {rank} {WORDS[number]}"
            return f"rank {rank} has that of '{optimizer.name_of(self._trained[number])}'"

        other = next(rank for rank, number in enumerate(told) if number != told[0])
        return MismatchError(
            f"ranks have to give gradients of the same parameters in the same order, but "
            f"{described(0)} where {described(other)}: does the model's path depend on the data of "
            f"a rank, or has a rank gone on after an exception?"
        )

    def _take(self, optimizer: CachedOptimizer, reduced: Reduced) -> None:
        reduced.work.wait()
        reduced.summed.div_(self._ranks.size)
        if reduced.summed is not reduced.gradient:
            reduced.gradient.copy_(reduced.summed)
        self._averaged.take(optimizer, reduced.parameter, reduced.gradient)
        if self._steps_now:
            optimizer.share_final([reduced.parameter])

    def _end_pass(self, optimizer: CachedOptimizer) -> None:
        for parameter in self._trained:  # that earlier passes have left, or passes inside this one
            if parameter.grad is not None:
                optimizer.check_not_taken(parameter)
                self._average(optimizer, parameter)
        self._begin_announced(optimizer)
        self._barrier(optimizer, END)
        self._close(optimizer)
        averaged, self._averaged = self._averaged, AveragedGradients()
        averaged.give_back()
        optimizer.end_pass()
        if averaged.failure is not None:
            raise averaged.failure

    def average_rest(self) -> None:
        """At a step: what passes have left in memory, on all ranks."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        self._barrier(optimizer, STEP)
        has_any = any(parameter.grad is not None for parameter in self._trained)
        own = torch.tensor([has_any], dtype=torch.bool, device="cpu")
        found = torch.empty(self._ranks.size, dtype=torch.bool, device="cpu")
        dist.all_gather_into_tensor(found, own, group=self._ranks.group)
        if found.any():
            self._begin_pass(optimizer)
            self._end_pass(optimizer)
