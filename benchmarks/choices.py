"""Ways to average gradients that scaling.py compares: how each is set up in a rank, and what a host
must send by each.

A choice that this build or this machine cannot offer is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: train_digits.py says why
from torch.nn.parallel import DistributedDataParallel

THRESHOLD = 1 << 20  # bytes of a bucket from which TopK is used: LIGHT_TOPK_THRESHOLD's default


def topk_share(ratio: float, values: str) -> float:
    """Bytes that TopK sends of each byte of float32: values of 4 or 2 bytes, a byte for the gap
    before each, and one more for every 255 elements that a gap is longer."""
    long_gap = (1 - ratio) ** 255
    index_bytes = 1 + long_gap / (1 - long_gap) if ratio < 1 else 1
    return ratio * ((2 if values == "float16" else 4) + index_bytes) / 4


@dataclass(frozen=True)
class Choice:
    title: str
    backend: str = "taco"
    algorithm: str = ""  # forced on the group
    compression: str | None = None  # of lightcc; None: DDP averages by itself
    values: str = "float32"  # of TopK
    spans_hosts: bool = False  # means nothing on one host
    # Steps until DDP has rebuilt its buckets and what depends on them is in place.
    warm: int = 3

    def wire_share(self, hosts: int, world: int, ratio: float) -> float | None:
        """Bytes that leave each host, in those of the gradients; None: not known beforehand."""
        if self.compression == "topk":
            return (hosts - 1) * topk_share(ratio, self.values)
        if self.compression == "float16":
            return (hosts - 1) / hosts
        if self.compression == "auto":
            return None
        ring = 2 * (world - 1) / world if hosts > 1 else 0.0
        return 2 * (hosts - 1) / hosts if self.spans_hosts else ring


CHOICES = {
    "gloo": Choice("gloo", backend="gloo"),
    "ring": Choice("taco, ring", algorithm="all_reduce=ring"),
    "2d": Choice("taco, 2D", algorithm="all_reduce=two_dimensional", spans_hosts=True),
    "2d_float16": Choice("taco, 2D, float16", compression="float16", spans_hosts=True),
    "topk": Choice("taco, TopK", compression="topk", values="float16", spans_hosts=True),
    # Some steps to measure, and some more for a second thought.
    "auto": Choice("taco, auto", compression="auto", values="float16", spans_hosts=True, warm=25),
}


def _why_not(choice: Choice, hosts: int, ratio: float) -> str | None:
    """Why a choice is not to be had here; the same on all ranks."""
    if choice.spans_hosts and hosts < 2:
        return "there is one host: nothing crosses a network"
    if choice.compression is None:
        return None
    try:
        from taco_torch import lightcc

        lightcc.hook(choice.compression, ratio=ratio, values=choice.values)
    except ImportError:
        return "this taco_torch has no lightcc"
    except (NotImplementedError, ValueError) as error:
        return f"this taco_torch does not offer it: {str(error).splitlines()[0]}"
    return None


@dataclass
class Offer:
    """The choices that can be had, with a group of all ranks each."""

    groups: dict[str, dist.ProcessGroup]
    left_out: dict[str, str]  # the reason, by choice
    ratio: float
    bucket_bytes: float | None  # of DDP; None: its own sizes
    scale: float  # how many times smaller than real gradients those here are

    @property
    def gate(self) -> dist.ProcessGroup:
        """For barriers: one group for all choices."""
        return list(self.groups.values())[-1]

    def options(self, name: str) -> dict[str, Any]:
        """Options of lightcc besides the kind of compression."""
        threshold = int(THRESHOLD / self.scale)
        return {"ratio": self.ratio, "values": CHOICES[name].values, "threshold": threshold}

    def parallel(self, name: str, module: torch.nn.Module) -> DistributedDataParallel:
        """DDP over a module whose parameters are equal on all ranks already."""
        size = self.bucket_bytes
        bucket = {} if size is None else {"bucket_cap_mb": size / (1 << 20)}
        model = DistributedDataParallel(
            module,
            process_group=self.groups[name],
            gradient_as_bucket_view=True,
            init_sync=False,
            **bucket,
        )
        if CHOICES[name].compression is not None:
            from taco_torch import lightcc

            lightcc.compress(model, CHOICES[name].compression, **self.options(name))
        return model

    def all_reduce(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Averages one parameter's gradient."""
        if CHOICES[name].compression is None:
            dist.all_reduce(parameter.grad, group=self.groups[name])
            return
        from taco_torch import lightcc

        lightcc.all_reduce_gradients(
            [parameter],
            group=self.groups[name],
            compression=CHOICES[name].compression,
            **self.options(name),
        )


def make_offer(
    names: Sequence[str], hosts: int, ratio: float, scale: float, bucket_bytes: float | None
) -> Offer:
    """In a rank: groups for those choices that can be had. Gloo's, if any, is the default group."""
    import taco_torch

    left_out = {name: why for name in names if (why := _why_not(CHOICES[name], hosts, ratio))}
    wanted = [name for name in names if name not in left_out]
    dist.init_process_group("gloo" if "gloo" in wanted else "taco")
    groups: dict[str, dist.ProcessGroup] = {}
    for name in wanted:
        choice = CHOICES[name]
        if choice.backend == "gloo":
            groups[name] = dist.group.WORLD
        else:
            options = taco_torch.Options(algorithm=choice.algorithm)
            groups[name] = dist.new_group(backend="taco", pg_options=options)
    return Offer(groups, left_out, ratio, bucket_bytes, scale)
