"""Averaging gradients in a training loop that uses no DistributedDataParallel."""

import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from taco_torch._extension import _C
from taco_torch.groups import taco_backend
from taco_torch.lightcc import ledger
from taco_torch.lightcc.settings import Options, scale_of, whole_number

Bucket = tuple[int, ...]  # numbers of the parameters


@dataclass
class _Loop:
    """The state kept of one list of parameters in one group."""

    group_id: int
    parameters: list["ref[torch.Tensor]"]  # another may get the id() of one that is gone
    sizes: list[int]
    native: _C.GradientHook
    buffer: torch.Tensor | None = None  # in which gradients are copied together
    grad_scaler: Any = None  # found by ledger.py

    def is_of(self, group_id: int, listed: list[torch.Tensor]) -> bool:
        return (
            self.group_id == group_id
            and len(self.parameters) == len(listed)
            and all(held() is given for held, given in zip(self.parameters, listed, strict=True))
            and self.sizes == [parameter.numel() for parameter in listed]
        )

    def is_over(self) -> bool:
        """Whether one of its parameters is gone, so that nobody can name all of them any more."""
        return any(held() is None for held in self.parameters)


# By the first parameter: lists that begin with it.
_loops: WeakIdKeyDictionary = WeakIdKeyDictionary()


@torch.no_grad()
def all_reduce_gradients(
    parameters: Iterable[torch.Tensor],
    group: dist.ProcessGroup | None = None,
    compression: str | None = None,
    *,
    ratio: float | None = None,
    threshold: int | None = None,
    values: str | None = None,
    allow: Collection[str] | None = None,
    fusion_bytes: int | None = None,
) -> None:
    """Averages gradients over a taco group, in place, and compressed if asked for.

    Collective: all ranks pass the same parameters in the same order, and the same of them have
    gradients; on a rank outside the group nothing is done. A parameter that is named twice counts
    once. Small float32 gradients are copied together, in order, up to ``fusion_bytes``; larger ones
    are sent from where they lie. Sparse gradients, and those of other dtypes, go by themselves and
    exact. What ``topk`` has not sent is kept for the next call with the same parameters.

    Args:
        parameters: leaf tensors; those whose ``grad`` is None are left out.
        group: default: WORLD.
        compression, ratio, threshold, values, allow: as in ``compress()``; but None compresses
            nothing where no LIGHT_* variable asks for it. ``"auto"`` measures from call to call:
            it needs some calls with the same parameters until it chooses, and nothing hides what
            they take.
        fusion_bytes: None: LIGHT_FUSION_BYTES; 0: nothing is copied together.

    Raises:
        ValueError: a value is out of range; or ranks have different gradients: the text names the
            first rank that differs and how.
        TypeError: the group's backend is not taco; a gradient is of integers, not on the CPU or a
            DTensor; or a value is of another type.
    """
    settings = Options(compression, ratio, threshold, values, allow=allow).settings()
    if fusion_bytes is None:
        fusion_bytes = int(_C.lightcc_environment()["fusion_bytes"])
    if whole_number("fusion_bytes", fusion_bytes) < 0:
        raise ValueError(f"fusion_bytes is {fusion_bytes}, but must be 0 or more")
    listed = _listed(parameters)
    gradients = {i: p.grad for i, p in enumerate(listed) if p.grad is not None}
    for index, gradient in gradients.items():
        _check(index, gradient)
    outside: object = dist.GroupMember.NON_GROUP_MEMBER
    if group is outside:
        return  # as torch does
    backend = taco_backend(group)
    _check_alike(gradients, len(listed), group)
    if gradients:
        loop = _loop_of(listed, backend, settings)
        _average(loop, gradients, fusion_bytes, group)


def _listed(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters as a list, each of them once."""
    if isinstance(parameters, torch.Tensor):  # its rows would have no gradients
        raise TypeError(
            "all_reduce_gradients() takes parameters, got one tensor: put it into a list"
        )
    listed = list({id(parameter): parameter for parameter in parameters}.values())
    for index, parameter in enumerate(listed):
        if not isinstance(parameter, torch.Tensor):
            kind = type(parameter).__name__
            raise TypeError(
                f"all_reduce_gradients() takes parameters, but number {index} is a {kind}"
            )
    return listed


def _check(index: int, gradient: torch.Tensor) -> None:
    if not gradient.is_floating_point() and not gradient.is_complex():
        raise TypeError(f"gradient {index} is of {gradient.dtype}: it has no average")
    if hasattr(gradient, "device_mesh"):  # to import DTensor takes long
        raise TypeError(
            f"gradient {index} is a DTensor: who has sharded it averages it, and under fully_shard "
            "it has been averaged already"
        )
    if gradient.device.type != "cpu":
        raise TypeError(f"gradient {index} is on {gradient.device}: taco averages those on the CPU")


def _loop_of(
    listed: list[torch.Tensor], backend: _C.ProcessGroupTaco, settings: _C.GradientSettings
) -> _Loop:
    if listed[0] not in _loops:
        _loops[listed[0]] = []
    loops: list[_Loop] = _loops[listed[0]]
    loops[:] = [loop for loop in loops if not loop.is_over()]
    for loop in loops:
        if loop.is_of(backend.group_id, listed):
            if loop.native.settings != settings:
                loop.native.change(settings, scale_of(loop.grad_scaler))
            return loop
    named = [(str(index), parameter) for index, parameter in enumerate(listed)]
    native = _C.GradientHook(backend, named, settings, None)
    sizes = [parameter.numel() for parameter in listed]
    made = _Loop(backend.group_id, [ref(parameter) for parameter in listed], sizes, native)
    loops.append(made)
    ledger.listen()
    for index, parameter in enumerate(listed):
        ledger.add(parameter, made.native, index, made)
    return made


def _check_alike(
    gradients: dict[int, torch.Tensor], parameters: int, group: dist.ProcessGroup | None
) -> None:
    shapes = ";".join(
        f"{index}:{tuple(g.shape)}:{g.dtype}:{g.layout}" for index, g in gradients.items()
    )
    told = [parameters, len(gradients), zlib.crc32(shapes.encode())]
    mine = torch.tensor(told, dtype=torch.int64, device="cpu")
    world = dist.get_world_size(group)
    everyone = torch.empty(world * 3, dtype=torch.int64, device="cpu")
    dist.all_gather_into_tensor(everyone, mine, group=group)
    rows = everyone.view(world, 3).tolist()
    for rank, row in enumerate(rows):
        if row != rows[0]:
            what = (
                "of the same number of parameters, but of others"
                if row[:2] == rows[0][:2]
                else f"of {row[1]} of {row[0]} parameters, rank 0 of {rows[0][1]} of {rows[0][0]}"
            )
            raise ValueError(f"all_reduce_gradients: rank {rank} has gradients {what}")


def _buckets(gradients: dict[int, torch.Tensor], fusion_bytes: int) -> list[Bucket]:
    """The buckets of float32 gradients that are sent together."""
    buckets: list[Bucket] = []
    open_bucket: list[int] = []
    open_bytes = 0
    for index, gradient in gradients.items():
        if gradient.nbytes >= fusion_bytes:
            buckets.append((index,))
            continue
        if open_bucket and open_bytes + gradient.nbytes > fusion_bytes:
            buckets.append(tuple(open_bucket))
            open_bucket, open_bytes = [], 0
        open_bucket.append(index)
        open_bytes += gradient.nbytes
    if open_bucket:
        buckets.append(tuple(open_bucket))
    return buckets


def _average(
    loop: _Loop,
    gradients: dict[int, torch.Tensor],
    fusion_bytes: int,
    group: dist.ProcessGroup | None,
) -> None:
    plain = {
        index: gradient
        for index, gradient in gradients.items()
        if gradient.dtype == torch.float32
        and gradient.layout == torch.strided
        and gradient.numel() > 0
    }
    works = []
    copies: list[tuple[Bucket, torch.Tensor]] = []
    buckets = _buckets(plain, fusion_bytes)
    room = _room(loop, [bucket for bucket in buckets if _is_copied(bucket, plain)], plain)
    for number, bucket in enumerate(buckets):
        if _is_copied(bucket, plain):
            flat = next(room)
            torch.cat([plain[index].reshape(-1) for index in bucket], out=flat)
            copies.append((bucket, flat))
        else:
            flat = plain[bucket[0]].view(-1)
        works.append(loop.native.average(number, list(bucket), flat))
    for index, gradient in gradients.items():
        if index not in plain and (gradient.is_sparse or gradient.numel() > 0):
            works.append(dist.all_reduce(gradient, dist.ReduceOp.AVG, group, async_op=True))
    for work in works:
        work.wait()
    for bucket, flat in copies:
        parts = flat.split_with_sizes([plain[index].numel() for index in bucket])
        for index, part in zip(bucket, parts, strict=True):
            plain[index].copy_(part.view(plain[index].shape))
    loop.native.end_pass()


def _is_copied(bucket: Bucket, gradients: dict[int, torch.Tensor]) -> bool:
    return len(bucket) > 1 or not gradients[bucket[0]].is_contiguous()


def _room(
    loop: _Loop, buckets: list[Bucket], gradients: dict[int, torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Memory for each of them; whichever parameters have gradients, the loop keeps no more of it
    than a call has needed."""
    elements = [sum(gradients[index].numel() for index in bucket) for bucket in buckets]
    if loop.buffer is None or loop.buffer.numel() < sum(elements):
        loop.buffer = torch.empty(sum(elements), dtype=torch.float32, device="cpu")
    return iter(loop.buffer[: sum(elements)].split_with_sizes(elements))
