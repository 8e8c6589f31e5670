"""The classes that ``DistributedOptimizer()`` puts in front of an optimizer's own."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from taco_torch.horovod.asynchronous import allreduce_async_
from taco_torch.horovod.compression import Compressor
from taco_torch.horovod.gradient_reducer import Reducer
from taco_torch.horovod.process_sets import ProcessSet
from taco_torch.horovod.reduce_ops import Adasum, ReduceOp

Closure = Callable[[], Any]


class Wrapped(torch.optim.Optimizer):
    """An optimizer that knows its parameters' names, and that of another process set steps
    alone. A base of the class that is made for each optimizer; the other base is the optimizer's
    own class."""

    op: ReduceOp
    process_set: ProcessSet
    backward_passes_per_step: int
    _parameter_names: dict[torch.Tensor, str]

    def step_alone(self, closure: Closure | None = None) -> Any:
        """The optimizer's own step: this rank's, without communication."""
        raise NotImplementedError

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up before a step."""
        self.backward_passes_per_step = check_passes(passes)


def check_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}, but must be 1 or more")
    return passes


class Averaging(Wrapped):
    """Its ``step()`` first reduces the gradients over the ranks of the process set."""

    _reducer: Reducer | None  # None: this rank is alone
    _delays: dict[torch.Tensor, int]  # backward passes left until a gradient is ready
    _is_synchronized: bool
    _should_synchronize: bool

    def listen(self, reducer: Reducer | None) -> None:
        """From now on backward passes begin to reduce gradients."""
        self._reducer = reducer
        self._is_synchronized, self._should_synchronize = False, True
        # All parameters that could be trained when this was made: one that is frozen later is still
        # reduced, since it may not be frozen on other ranks.
        passes = self.backward_passes_per_step
        self._delays = {p: passes for p in self._parameter_names if p.requires_grad}
        if reducer is not None:
            for parameter in self._delays:
                leaf: Any = parameter  # torch gives this method no types
                leaf.register_post_accumulate_grad_hook(self._on_gradient)

    def _reset_delays(self) -> None:
        self._delays = dict.fromkeys(self._delays, self.backward_passes_per_step)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        assert self._reducer is not None
        left = self._delays[parameter]
        if left <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._delays[parameter] = left - 1
        if left == 1:
            self._reducer.begin(parameter)

    def set_backward_passes_per_step(self, passes: int) -> None:
        super().set_backward_passes_per_step(passes)
        self._reset_delays()

    def load_state_dict(self, state_dict: Any) -> None:
        """As torch's; gradients that are on their way are forgotten."""
        if self._reducer is not None:
            self._reducer.forget()
        self._is_synchronized, self._should_synchronize = False, True
        self._reset_delays()
        super().load_state_dict(state_dict)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. Collective within the process set. Where a program
        calls it itself, say to clip gradients, its step goes within ``skip_synchronize()``.

        Raises:
            RuntimeError: ranks have different gradients; the job stays usable.
            HorovodInternalError: a rank is lost.
        """
        if self._reducer is not None:
            try:
                self._reducer.finish(list(self._delays))
            finally:
                self._reset_delays()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step()`` takes it that ``synchronize()`` has been called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Closure | None = None) -> Any:
        """The optimizer's step with the reduced gradients; those of a closure are reduced, too."""
        if not self._should_synchronize:
            self._is_synchronized = False
            return self.step_alone(closure)
        if self._is_synchronized and self._reducer is not None:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(). This can cause training slowdown. You may want to "
                "consider using optimizer.skip_synchronize() context if you use "
                "optimizer.synchronize() in your code.",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
        self._is_synchronized = False
        try:
            return self.step_alone(None if closure is None else self._reducing(closure))
        finally:
            self._is_synchronized = False

    # torch would call the hooks of steps here and in the optimizer's own step, which this one
    # calls once the gradients are there.
    step.hooked = True  # type: ignore[attr-defined]

    def _reducing(self, closure: Closure) -> Closure:
        def reducing() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return reducing

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """As torch's. AssertionError while gradients are on their way."""
        if self._reducer is not None and self._reducer.is_pending():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause a "
                "race condition."
            )
        super().zero_grad(*arguments, **named)


class AdasumDeltas(Wrapped):
    """Steps with this rank's gradients, and combines by Adasum what the steps have changed
    (Maleki et al., MLSys 2021)."""

    _compression: type[Compressor]

    def synchronize(self) -> None:
        """Nothing: what is combined is known after the step."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )
        yield

    def step(self, closure: Closure | None = None) -> Any:
        """Collective within the process set."""
        parameters = [p for p in self._parameter_names if p.requires_grad]
        starts = [p.detach().clone() for p in parameters]
        loss = self.step_alone(closure)
        self._combine(parameters, starts)
        return loss

    step.hooked = True  # type: ignore[attr-defined]

    @torch.no_grad()
    def _combine(self, parameters: Sequence[torch.Tensor], starts: Sequence[torch.Tensor]) -> None:
        pending = []
        for parameter, start in zip(parameters, starts, strict=True):
            delta, context = self._compression.compress((parameter - start).contiguous())
            name = self._parameter_names[parameter]
            handle = allreduce_async_(delta, name=name, op=Adasum, process_set=self.process_set)
            pending.append((handle, context))
        for parameter, start, (handle, context) in zip(parameters, starts, pending, strict=True):
            parameter.copy_(start + self._compression.decompress(handle.wait(), context))
