"""Lion, which torch has not: for programs with and without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Steps by the sign of the momentum: Chen et al., "Symbolic Discovery of Optimization
    Algorithms", 2023 (arXiv 2302.06675), algorithm 2.

    Args:
        params: parameters, or groups of them, as of any torch.optim.Optimizer.
        lr: about a tenth to a third of what suits AdamW.
        betas: of the step's direction, and of the momentum that is kept.
        weight_decay: decoupled, as in AdamW; three to ten times what suits AdamW.
        maximize: whether to go uphill.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr={lr} must be at least 0")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must be at least 0 and less than 1")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay={weight_decay} must be at least 0")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what ``closure`` returns, which computes the loss anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = -parameter.grad if group["maximize"] else parameter.grad
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                momentum = state["exp_avg"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                direction = momentum.mul(beta1).add_(gradient, alpha=1 - beta1).sign_()
                parameter.add_(direction, alpha=-group["lr"])
                momentum.mul_(beta2).add_(gradient, alpha=1 - beta2)
        return loss
