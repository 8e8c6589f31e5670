"""Batch normalisation over the batches of all ranks."""

from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from taco_torch.horovod import autograd
from taco_torch.horovod.asynchronous import allgather_async, allreduce_async
from taco_torch.horovod.job import the_job
from taco_torch.horovod.reduce_ops import Sum


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose mean and variance are those of all ranks' inputs together.

    Takes inputs (N, C, ...) on the CPU; ranks may have different N. Arguments are those of
    ``torch.nn.BatchNorm2d``: num_features, eps, momentum (None: the mean of all batches), affine
    and track_running_stats. In ``eval()`` it is what that is.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm takes (N, C, ...), got {list(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Collective in training. Returns a tensor of the input's shape and dtype.

        Raises ValueError for an input of another form."""
        self._check_input_dim(input)
        tracks = self.training and self.running_mean is not None
        factor = 0.0 if self.momentum is None else self.momentum
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        own_batch = self.training or self.running_mean is None
        if not own_batch or the_job().size == 1:
            return functional.batch_norm(
                input,
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                own_batch,
                factor,
                self.eps,
            )
        running = (self.running_mean, self.running_var) if tracks else (None, None)
        normalised: torch.Tensor = autograd.run(
            _Normalise, input, self.weight, self.bias, *running, self.eps, factor
        )
        return normalised


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In the dtype in which sums are made."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _along(channel: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A value for each channel, to be combined with (N, C, ...)."""
    return channel.to(tensor.dtype).view(1, -1, *[1] * (tensor.dim() - 2))


def _statistics(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and variance by channel (float64) of all ranks' values, and how many there are. Each
    rank's deviations are from its own mean, so that nothing cancels (Chan et al., 1979)."""
    dimensions = [d for d in range(tensor.dim()) if d != 1]
    channels = tensor.shape[1]
    count = tensor.numel() // channels if channels else 0
    values = tensor.double()
    mean = values.sum(dimensions) / max(count, 1)
    squares = (values - _along(mean, values)).square().sum(dimensions)
    own = torch.cat([mean, squares, mean.new_tensor([count])]).view(1, -1)
    rows = allgather_async(own).wait()
    means, deviations, counts = rows.split([channels, channels, 1], dim=1)
    total = float(counts.sum())
    if total == 0:
        raise ValueError("SyncBatchNorm: no rank has any value")
    mean = (means * counts).sum(0) / total
    squares = deviations.sum(0) + ((means - mean).square() * counts).sum(0)
    return mean, squares / total, total


class _Normalise(torch.autograd.Function):
    """Normalises over all ranks; gradients of weight and bias are this rank's share, which the
    optimizer reduces as it does others."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        eps: float,
        factor: float,
    ) -> Any:
        values = _wide(input)
        mean, variance, total = _statistics(values)
        if running_mean is not None and running_var is not None:
            unbiased = variance * (total / max(total - 1, 1))
            running_mean.lerp_(mean.to(running_mean.dtype), factor)
            running_var.lerp_(unbiased.to(running_var.dtype), factor)
        scale = (variance + eps).rsqrt()
        ctx.save_for_backward(input, weight, mean, scale)
        ctx.total = total
        output = (values - _along(mean, values)) * _along(scale, values)
        if weight is not None:
            output = output * _along(weight, values)
        if bias is not None:
            output = output + _along(bias, values)
        return output.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        input, weight, mean, scale = ctx.saved_tensors
        values, gradient = _wide(input), _wide(gradients[0])
        dimensions = [d for d in range(values.dim()) if d != 1]
        normal = (values - _along(mean, values)) * _along(scale, values)
        for_bias = gradient.sum(dimensions)
        for_weight = (gradient * normal).sum(dimensions)
        for_input = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([for_bias.double(), for_weight.double()])
            both = allreduce_async(sums, op=Sum).wait() / ctx.total
            shift, tilt = both.split([for_bias.numel(), for_weight.numel()])
            centred = gradient - _along(shift, values) - normal * _along(tilt, values)
            factor = scale if weight is None else scale * weight.double()
            for_input = (centred * _along(factor, values)).to(input.dtype)
        return (
            for_input,
            for_weight.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None,
            for_bias.to(gradients[0].dtype if weight is None else weight.dtype)
            if ctx.needs_input_grad[2]
            else None,
            None,
            None,
            None,
            None,
        )
