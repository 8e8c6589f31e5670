"""Steps in the backward pass of what DistributedDataParallel averages."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taco_torch._extension import _C
from taco_torch.errors import MismatchError
from taco_torch.lightcc import models
from taco_torch.zerocache import guards
from taco_torch.zerocache.averaged_gradients import MAX_UNDER_WAY, AveragedGradients
from taco_torch.zerocache.hooks import Hooks

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer
    from taco_torch.zerocache.ranks import Ranks


def check_options(model: DistributedDataParallel) -> None:
    """Raises NotImplementedError where the means of a bucket are not final when they arrive, or go
    to somebody else."""
    told = "leave step_in_backward=False"
    for option, given in (
        ("find_unused_parameters", model.find_unused_parameters),
        ("static_graph", model.static_graph),
    ):
        if given:
            raise NotImplementedError(
                f"DistributedDataParallel({option}=True) knows at the end of a backward pass alone "
                f"which parameters have gradients: {told}, or the option"
            )
    if model._comm_hooks or models.find(model) is not None:
        raise NotImplementedError(
            "DistributedDataParallel has a communication hook (lightcc.compress() is one), and "
            f"steps in the backward pass need that place: {told}, or register none"
        )
    if model._use_python_reducer or model._delay_all_reduce_all_params:
        raise NotImplementedError(
            "DistributedDataParallel reduces gradients in Python, or all at the end, and steps in "
            f"the backward pass need its usual buckets: {told}"
        )


class Left:
    """Notes which ranks an exception has taken out of a pass, as all ranks tell each other."""

    def __init__(self, group: dist.ProcessGroup, left: bool) -> None:
        self._told = torch.empty(group.size(), dtype=torch.bool, device="cpu")
        self._own = torch.tensor([left], dtype=torch.bool, device="cpu")
        self._work = dist.all_gather_into_tensor(self._told, self._own, group=group, async_op=True)

    def check(self) -> None:
        """Raises MismatchError on all ranks where one has left."""
        self._work.wait()
        if self._told.any():
            raise MismatchError(
                f"rank {self._told.tolist().index(True)} has left its backward pass by an "
                f"exception, and has no more gradients"
            )


class Bucket(NamedTuple):
    """Gradients that are being averaged."""

    parameters: list[Tensor]
    gradients: list[Tensor]  # views of the buffer
    buffer: Tensor
    mean: Any  # a future
    left: Left


class BucketGradients:
    """A communication hook that has the optimizer take gradients as soon as they are averaged.

    DistributedDataParallel calls it for one bucket after the other, in the same order on all ranks.
    It averages with the calls, and the bits, of DistributedDataParallel alone. Means are used where
    they lie, in the bucket; once all of its have been, its memory is the system's until the next
    pass writes there.

    With each bucket ranks tell each other that they are still in the pass. One that an exception
    has taken out of it gives zeros instead, when it next has to do with the others, for as many
    buckets as these begin before they hear of it; nobody uses those.
    """

    def __init__(
        self,
        optimizer: CachedOptimizer,
        model: DistributedDataParallel,
        parameters: Iterable[nn.Parameter],
        gradients: str,
        ranks: Ranks | None,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._model = weakref.ref(model)
        self._trained = dict.fromkeys(parameters)  # in order
        self._steps_now = gradients == "stepped"
        self._under_way: deque[Bucket] = deque()
        self._passing = self._agreed = False  # buckets of a pass have come; all may be stepped
        self._begun = 0  # of them
        self._averaged = AveragedGradients(lent=True)
        self._undo = guards.guard(self._trained, self._optimizer, self._accumulated)
        optimizer.take_gradients(gradients)
        optimizer.means = self
        if ranks is not None:
            ranks.before_call = self.leave_pass
        reducer: Any = model.reducer
        reducer._set_optimizer_in_backward()  # it copies no means to p.grad
        # torch looks for annotations, and knows none as text.
        model.register_comm_hook(None, lambda _, bucket: self._average(bucket))

    def detach(self) -> None:
        """Has DistributedDataParallel leave means in ``p.grad`` again, as it does alone."""
        while self._undo:
            self._undo.pop()()
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.means = None
            optimizer.take_gradients("in memory")
        self._trained.clear()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Inside, gradients add up in memory, and ranks do not average."""
        model = self._model()
        if model is None:
            yield
            return
        with model.no_sync():
            yield

    def _accumulated(self, parameter: Tensor) -> None:
        """Before DistributedDataParallel hears of it."""
        optimizer, model = self._optimizer(), self._model()
        assert isinstance(parameter, nn.Parameter)
        if optimizer is not None and model is not None and model.require_backward_grad_sync:
            optimizer.check_not_taken(parameter)

    def _average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        model = self._model()
        assert model is not None
        buffer = bucket.buffer()
        buffer.mul_(1.0 / model.process_group.size())  # as torch does where it has no hook
        self._begin(model, bucket)
        for parameter in bucket.parameters():
            parameter.grad = None
        if not self._passing:
            self._begin_pass()
        while len(self._under_way) >= MAX_UNDER_WAY:
            self._take_first()
        if bucket.is_last():
            # Behind what DistributedDataParallel has its pass end with, which it is about to queue.
            Hooks.at_end_of_task(partial(Hooks.at_end_of_task, self._end_pass))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    def _begin(self, model: DistributedDataParallel, bucket: Any, left: bool = False) -> None:
        reducer: Any = model.reducer
        mean, told = reducer._run_allreduce_hook(bucket), Left(model.process_group, left)
        self._under_way.append(
            Bucket(bucket.parameters(), bucket.gradients(), bucket.buffer(), mean, told)
        )
        self._begun += 1

    def _begin_pass(self) -> None:
        self._passing, self._agreed = True, False
        optimizer = self._optimizer()
        if optimizer is None or not self._trained or not self._steps_now:
            return
        try:
            optimizer.agree_on_early(p for p in self._trained if p.requires_grad)
        except Exception as error:  # on all ranks; nothing has changed
            self._averaged.failure = error
        else:
            self._agreed = True

    def _take_first(self) -> None:
        bucket = self._under_way.popleft()
        bucket.mean.wait()
        self._check(bucket.left)
        optimizer = self._optimizer()
        for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
            taker = optimizer if parameter in self._trained else None
            self._averaged.take(taker, parameter, gradient)
        if optimizer is None or not self._trained:
            _C.zerocache.forget_bytes(bucket.buffer)
        else:
            optimizer.forget_when_used(bucket.buffer)
            if self._agreed:
                optimizer.share_final(p for p in bucket.parameters if p in self._trained)

    def _end_pass(self) -> None:
        model = self._model()
        while self._under_way:
            self._take_first()
        if model is not None:
            self._check(Left(model.process_group, False))
        averaged, taken = self._averaged, self._agreed if self._steps_now else bool(self._trained)
        self._close()
        averaged.give_back()
        optimizer = self._optimizer()
        if optimizer is not None and taken:
            optimizer.end_pass()
        if averaged.failure is not None:
            raise averaged.failure

    def _check(self, left: Left) -> None:
        try:
            left.check()
        except MismatchError:
            self._close()
            for parameter in self._trained:  # of this rank alone, and nobody averages them now
                parameter.grad = None
            raise

    def _close(self) -> None:
        """The pass is over. What is under way arrives, for nobody."""
        self._passing, self._begun, self._averaged = False, 0, AveragedGradients(lent=True)
        while self._under_way:
            bucket = self._under_way.popleft()
            bucket.mean.wait()
            with suppress(MismatchError):
                bucket.left.check()

    def leave_pass(self) -> None:
        """Where an exception has ended a pass on this rank, the others hear of it. All of them have
        taken the same buckets then, and are about to end the step of that pass."""
        model = self._model()
        if not self._passing or model is None:
            return
        reducer: Any = model.reducer
        try:
            with suppress(MismatchError):
                # The others begin two more, if there are so many.
                for bucket in reducer._get_zeros_like_grad_buckets()[self._begun :][:2]:
                    self._begin(model, bucket, left=True)
                    while len(self._under_way) >= MAX_UNDER_WAY:
                        self._take_first()
                while self._under_way:
                    self._take_first()
                self._check(Left(model.process_group, True))
        finally:
            self._passing, self._begun = False, 0
            self._under_way.clear()

    def average_rest(self) -> None:
        """At a step: DistributedDataParallel has left nothing in memory that is no mean."""
