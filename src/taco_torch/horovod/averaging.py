"""The classes that ``DistributedOptimizer()`` puts in front of an optimizer's own."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

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
    _is_replaced = False  # another one has been made of its parameters

    def replace(self) -> None:
        """Another optimizer reduces its parameters' gradients from now on."""
        self._is_replaced = True

    def check_not_replaced(self) -> None:
        if self._is_replaced:
            raise RuntimeError(
                "DistributedOptimizer() was called again for parameters of this optimizer: use "
                "the one that it returned then, which reduces their gradients"
            )

    def has_any_of(self, parameters: Iterable[torch.Tensor]) -> bool:
        return any(parameter in self._parameter_names for parameter in parameters)

    def step_alone(self, closure: Closure | None = None) -> Any:
        """The optimizer's own step: this rank's, without communication."""
        raise NotImplementedError

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up before a step."""
        self.backward_passes_per_step = check_passes(passes)


_in_use: WeakSet[Wrapped] = WeakSet()  # those that have not been replaced


def take_over(made: Wrapped, parameters: Iterable[torch.Tensor], reduces: bool) -> None:
    """Replaces the optimizers that have been made of any of these parameters before, by one that
    is being made of them. One that reduces nothing, since this rank is alone, has nothing to take
    over."""
    listed = list(parameters)
    for older in [each for each in _in_use if reduces and each.has_any_of(listed)]:
        older.replace()
        _in_use.discard(older)
    _in_use.add(made)


def check_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}, but must be 1 or more")
    return passes


class Averaging(Wrapped):
    """Its ``step()`` first reduces the gradients over the ranks of the process set."""

    _reducer: Reducer | None  # None: this rank is alone
    _hooks: list[Any]  # on its parameters
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
        self._hooks = []
        if reducer is None:
            return
        for parameter in self._delays:
            leaf: Any = parameter  # torch gives this method no types
            self._hooks.append(leaf.register_post_accumulate_grad_hook(self._on_gradient))

    def replace(self) -> None:
        super().replace()
        for hook in self._hooks:
            hook.remove()
        if self._reducer is not None:
            self._reducer.end()

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
        self.check_not_replaced()
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
        """The optimizer's step with the reduced gradients; those of a closure are reduced, too.

        RuntimeError where DistributedOptimizer() was called again for these parameters."""
        self.check_not_replaced()
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

    _compression: type[Compressor] | Compressor

    def synchronize(self) -> None:
        """Nothing: what is combined is known after the step."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )
        yield

    def step(self, closure: Closure | None = None) -> Any:
        """Collective within the process set. RuntimeError where DistributedOptimizer() was called
        again for these parameters."""
        self.check_not_replaced()
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
