"""Steps in the backward pass of what DistributedDataParallel averages."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taco_torch._extension import _C
from taco_torch.lightcc import models
from taco_torch.zerocache import guards
from taco_torch.zerocache.hooks import Hooks
from taco_torch.zerocache.taking import MOST_UNDER_WAY, Taking

if TYPE_CHECKING:
    from taco_torch.zerocache.optimizer import CachedOptimizer


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


class Bucket(NamedTuple):
    """Gradients that are being averaged."""

    parameters: list[Tensor]
    gradients: list[Tensor]  # views of the buffer
    buffer: Tensor
    mean: Any  # a future


class BucketGradients:
    """A communication hook that has the optimizer take gradients as soon as they are averaged.

    DistributedDataParallel calls it for one bucket after the other, in the same order on all ranks.
    It averages with the calls, and the bits, of DistributedDataParallel alone. Means are used where
    they lie, in the bucket; once all of its have been, its memory is the system's until the next
    pass writes there.
    """

    def __init__(
        self,
        optimizer: CachedOptimizer,
        model: DistributedDataParallel,
        parameters: Iterable[nn.Parameter],
        gradients: str,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._model = weakref.ref(model)
        self._trained = dict.fromkeys(parameters)  # in order
        self._steps_now = gradients == "stepped"
        self._under_way: deque[Bucket] = deque()
        self._passing = self._agreed = False  # buckets of a pass have come; all may be stepped
        self._taking = Taking(lent=True)
        self._undo = guards.guard(self._trained, self._optimizer, self._accumulated)
        optimizer.take_gradients(gradients)
        reducer: Any = model.reducer
        reducer._set_optimizer_in_backward()  # it copies no means to p.grad
        # torch looks for annotations, and knows none as text.
        model.register_comm_hook(None, lambda _, bucket: self._average(bucket))

    def detach(self) -> None:
        """From now on DistributedDataParallel leaves means in ``p.grad``, as it does alone."""
        while self._undo:
            self._undo.pop()()
        optimizer = self._optimizer()
        if optimizer is not None:
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
        reducer: Any = model.reducer
        mean = reducer._run_allreduce_hook(bucket)
        parameters = bucket.parameters()
        self._under_way.append(Bucket(parameters, bucket.gradients(), buffer, mean))
        for parameter in parameters:
            parameter.grad = None
        if not self._passing:
            self._begin_pass()
        while len(self._under_way) >= MOST_UNDER_WAY:
            self._take_first()
        if bucket.is_last():
            # Behind what DistributedDataParallel has its pass end with, which it is about to queue.
            Hooks.at_end_of_task(partial(Hooks.at_end_of_task, self._end_pass))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    def _begin_pass(self) -> None:
        self._passing, self._agreed = True, False
        optimizer = self._optimizer()
        if optimizer is None or not self._trained or not self._steps_now:
            return
        try:
            optimizer.agree_on_early(p for p in self._trained if p.requires_grad)
        except Exception as error:  # on all ranks; nothing has changed
            self._taking.failure = error
        else:
            self._agreed = True

    def _take_first(self) -> None:
        bucket = self._under_way.popleft()
        bucket.mean.wait()
        optimizer = self._optimizer()
        for parameter, gradient in zip(bucket.parameters, bucket.gradients, strict=True):
            taker = optimizer if parameter in self._trained else None
            self._taking.take(taker, parameter, gradient)
        if optimizer is None or not self._trained:
            _C.zerocache.forget_bytes(bucket.buffer)
        else:
            optimizer.forget_when_used(bucket.buffer)
            if self._agreed:
                optimizer.share_final(p for p in bucket.parameters if p in self._trained)

    def _end_pass(self) -> None:
        while self._under_way:
            self._take_first()
        taking, self._taking, self._passing = self._taking, Taking(lent=True), False
        taking.give_back()
        optimizer = self._optimizer()
        taken = self._agreed if self._steps_now else bool(self._trained)
        if optimizer is not None and taken:
            optimizer.end_pass()
        if taking.failure is not None:
            raise taking.failure
