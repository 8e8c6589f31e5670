"""The calls by which a program reaches parameters outside of the modules that have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from taco_torch.zerocache import hooks
from taco_torch.zerocache.lending import Lender
from taco_torch.zerocache.view import View


class Access(View):
    """The part of a ZeroCache that hands out parameters, and takes others."""

    _hooks: hooks.Hooks | None
    _lender: Lender | None

    def alone(self, doing: str = "") -> AbstractContextManager[None]:
        """For this package: inside, no other thread is in the store. ``doing``: as of Hooks."""
        return self._hooks.alone(doing) if self._hooks is not None else nullcontext()

    def _without_model(self) -> RuntimeError:
        _ = self.store  # that it is closed comes first
        return RuntimeError("this cache holds no model: call wrap() first")

    def _named(self, parameter: nn.Parameter | str) -> nn.Parameter:
        if isinstance(parameter, str):
            if self._model is None:
                raise self._without_model()
            with suppress(AttributeError):
                parameter = self._model.get_parameter(parameter)
        if not isinstance(parameter, nn.Parameter) or parameter not in self._names:
            shape = tuple(parameter.shape) if isinstance(parameter, Tensor) else parameter
            raise KeyError(f"{shape!r}: none of the parameters that this cache holds")
        return parameter

    @torch.no_grad()
    def full(self, parameter: nn.Parameter | str, value: Tensor | None = None) -> Tensor:
        """A copy of a parameter wherever it is now; or, given a value, sets it.

        Args:
            parameter: of the wrapped model, or its name.
            value: of the parameter's shape; converted to its dtype. None: nothing is changed.

        Returns:
            An ordinary tensor of the parameter's dtype, shape and strides.

        Raises:
            KeyError: it is none of this cache's parameters.
            ValueError: the value has another shape, or is no tensor.
        """
        parameter = self._named(parameter)
        copy = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu"
        )
        if value is None:
            with self.alone():
                self.store.read(parameter, copy)
            return copy
        found = tuple(value.shape) if isinstance(value, Tensor) else f"is no tensor: {value!r}"
        if found != tuple(parameter.shape):
            name, shape = self._names[parameter], tuple(parameter.shape)
            raise ValueError(f"parameter '{name}' has shape {shape}, the value {found}")
        copy.copy_(value)
        with self.alone("changed"):
            self.store.write(parameter, copy)
        return copy

    @contextmanager
    def use(self, *targets: nn.Module | nn.Parameter, writes: bool | None = None) -> Iterator[Any]:
        """Has parameters present that no module of the model is about to use by itself::

            with cache.use(model.embedding.weight) as keep:
                logits = keep(F.linear(hidden, model.embedding.weight))

        What is differentiated later has to go through ``keep``, which returns it as it is: so the
        parameters are there in its backward pass, too. All targets must fit on the device at once.

        Args:
            targets: parameters, or modules (all of their parameters).
            writes: whether code that has their ``data_ptr()`` changes parameters; what is changed
                through ``p`` or ``p.data`` is noticed. None: if gradients are off.
        """
        if self._hooks is None or self.closed:
            raise self._without_model()
        written = writes if writes is not None else not torch.is_grad_enabled()
        with self._hooks.use(*targets) as keep:
            try:
                yield keep
            finally:
                if written and not self.closed:
                    own = hooks.parameters_of(targets)
                    self.store.note_write([self._names[parameter] for parameter in own])

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Inside, each function of torch that is given a parameter has it for as long as it runs,
        as it has anyway in a module of the model, or in a backward pass::

            with cache.lend():
                model.merge_adapter()
                print(model.head.weight.norm())

        So code of others that reads and changes parameters runs as it is, and needs no more of the
        device than one of its functions does. ``full()`` and ``use()`` are faster where a parameter
        is touched often. Memory that a function hands out (``p.data_ptr()``) is not there. Of a
        model that is spread over ranks, all ranks do the same inside.
        """
        if self._lender is None or self.closed:
            raise self._without_model()
        with self._lender.anywhere():
            yield
