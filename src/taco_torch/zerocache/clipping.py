"""Gradients that are on pages between a backward pass and the step, and their norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from taco_torch.zerocache.cache import ZeroCache

EUCLIDEAN = 2.0


def not_finite(norm: float, norm_type: float) -> RuntimeError:
    """The error that clipping raises where it is told to."""
    return RuntimeError(
        f"the norm of all gradients, of order {norm_type}, is {norm}: they cannot be clipped "
        f"by it; optimizer.zero_grad() drops them, and error_if_nonfinite=False clips all the same"
    )


class KeptGradients:
    """Gradients that have left memory, until they are stepped or dropped.

    The norm of each is taken while it is in memory: the Euclidean one, as torch takes it. For
    another norm the gradients are read once more. What clipping, or a GradScaler, multiplies them
    by is remembered, and applied by the step.

    Of several backward passes that make one step, those of all but the last `grow`: the next pass
    adds to them what torch would add to them in memory, with the same bits.
    """

    option = "step_in_backward"  # of wrap()
    takes_all = False

    def __init__(self, cache: ZeroCache, names: Mapping[nn.Parameter, str]) -> None:
        self._cache = cache
        self._names = names
        self._norms: dict[nn.Parameter, Tensor] = {}
        self._factors: dict[nn.Parameter, float] = {}
        self._changed: set[nn.Parameter] = set()  # since the norm was taken
        self._growing: set[nn.Parameter] = set()
        self._lost: set[nn.Parameter] = set()  # a sum that could not be written

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._norms

    def __len__(self) -> int:
        return len(self._norms) + len(self._lost)

    def clear(self) -> None:
        """The step has used them, or the store has dropped them."""
        self._norms.clear()
        self._factors.clear()
        self._changed.clear()
        self._growing.clear()
        self._lost.clear()

    def drop(self) -> None:
        """Instead of a step."""
        self._cache.store.drop_gradients()
        self.clear()

    def keep(self, parameter: nn.Parameter, gradient: Tensor, grows: bool) -> None:
        """Puts a gradient on pages, or adds it to one that grows; who gives it lets go of it.

        Raises what the store raises. Where a sum could not be written, what earlier passes gave to
        it is lost, and check_whole() raises from then on.
        """
        added = parameter in self._norms
        if added:
            gradient = self._read(parameter).add_(gradient)
        self._forget(parameter)
        try:
            self._cache.store.keep_gradient(parameter, gradient)
        except Exception:
            if added:
                self._lost.add(parameter)
            raise
        self._norms[parameter] = torch.linalg.vector_norm(gradient, EUCLIDEAN)
        if grows:
            self._growing.add(parameter)

    def grows(self, parameter: nn.Parameter) -> bool:
        """Whether later passes may add to its gradient."""
        return parameter in self._growing

    def end_pass(self) -> None:
        """A backward pass is over."""
        self._cache.store.finish_gradients()

    def check_whole(self) -> None:
        """Raises RuntimeError where a gradient is not what all passes have added up to."""
        if self._lost:
            name = min(self._names[parameter] for parameter in self._lost)
            raise RuntimeError(
                f"what earlier backward passes gave to the gradient of parameter '{name}' was lost "
                f"when the next one was added: call optimizer.zero_grad() and begin the step anew"
            )

    def check_may_be_zeroed(self, parameter: nn.Parameter) -> None:
        """Raises RuntimeError where a program would take its gradient for gone, and later passes
        would add to it."""
        if self.grows(parameter):
            raise RuntimeError(
                f"the gradient of parameter '{self._names[parameter]}', from inside "
                f"'with cache.accumulate():', is on pages of the cache, where model.zero_grad() "
                f"does not reach it: call optimizer.zero_grad()"
            )

    def _forget(self, parameter: nn.Parameter) -> None:
        self._norms.pop(parameter, None)
        self._factors.pop(parameter, None)
        self._changed.discard(parameter)
        self._growing.discard(parameter)

    def _read(self, parameter: nn.Parameter) -> Tensor:
        """A copy of its gradient, clipped as far as it has been."""
        gradient = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu"
        )
        self._cache.store.read_gradient(parameter, gradient)
        factor = self.factor(parameter)
        return gradient if factor == 1.0 else gradient.mul_(factor)

    def factor(self, parameter: nn.Parameter) -> float:
        """The factor that its step multiplies the gradient by."""
        return self._factors.get(parameter, 1.0)

    @torch.no_grad()
    def clip(self, max_norm: float, norm_type: float, error_if_nonfinite: bool) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ over kept gradients, and others that are in memory."""
        self.check_whole()
        norm_type = float(norm_type)
        norms: dict[torch.dtype, list[Tensor]] = {}  # torch takes them by dtype
        in_memory: list[nn.Parameter] = []
        for parameter in self._names:
            if parameter in self._norms:
                norm = self._norm(parameter, norm_type)
            elif parameter.grad is not None:
                norm = torch.linalg.vector_norm(parameter.grad, norm_type)
                in_memory.append(parameter)
            else:
                continue
            norms.setdefault(norm.dtype, []).append(norm)
        if not norms:
            return torch.tensor(0.0, dtype=torch.float32, device="cpu")
        all_norms = torch.stack([norm for same in norms.values() for norm in same])
        total: Tensor = torch.linalg.vector_norm(all_norms, norm_type)
        if error_if_nonfinite and not total.isfinite():
            raise not_finite(total.item(), norm_type)
        torch.nn.utils.clip_grads_with_norm_(in_memory, max_norm, total)
        factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0).item()
        for parameter in self._norms:
            self._factors[parameter] = self.factor(parameter) * factor
        if factor != 1.0:
            self._changed.update(self._norms)
        return total

    def unscale(self, factor: float) -> bool | None:
        """Like CachedOptimizer.unscale_gradients()."""
        if not self._norms:
            return None
        exact = math.frexp(factor)[0] == 0.5  # a power of two, as scalers have it
        found = False
        for parameter, norm in self._norms.items():
            if not norm.isfinite():  # or the squares of what is finite are not
                found = found or not self._read(parameter).isfinite().all()
            if exact and norm.isfinite():
                self._norms[parameter] = norm * factor
            else:
                self._changed.add(parameter)
            self._factors[parameter] = self.factor(parameter) * factor
        return found

    def _norm(self, parameter: nn.Parameter, norm_type: float) -> Tensor:
        if norm_type == EUCLIDEAN and parameter not in self._changed:
            return self._norms[parameter]
        norm: Tensor = torch.linalg.vector_norm(self._read(parameter), norm_type)
        return norm
