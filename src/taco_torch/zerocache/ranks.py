"""Several processes that train one model: each keeps a part of the optimizer's state (stage 1 of
ZeRO, Rajbhandari et al. 2020), and of the parameters and gradients, too, where it is told so (stage
3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taco_torch.errors import MismatchError

T = TypeVar("T")


class Held(NamedTuple):
    """The values of a parameter that ranks compare before they share its state."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    digest: int  # of its bytes


class Ranks:
    """The processes that share an optimizer's state. All of them make the same calls at once."""

    def __init__(self, group: dist.ProcessGroup, model: nn.Module) -> None:
        self.group = group
        self.rank = group.rank()
        self.size = group.size()
        self._model = model
        # Has the group free for a call of this object that is about to begin.
        self.before_call: Callable[[], None] = lambda: None

    @property
    def backend(self) -> Any:
        """The backend that moves tensors of this machine's memory."""
        return self.group._get_backend(torch.device("cpu"))

    def gather(self, value: T) -> list[T]:
        """Returns what each rank has given, by rank."""
        found: list[Any] = [None] * self.size
        self.before_call()
        dist.all_gather_object(found, value, group=self.group)
        return found

    def together(self, call: Callable[[], T]) -> T:
        """Calls it, and returns what it returns where all ranks have come so far. Otherwise raises
        what it raised; or, on ranks where it did not, RuntimeError that names the first rank where
        it did."""
        error: Exception | None = None
        try:
            value = call()
        except Exception as own:
            error = own
        failures = self.gather(error and f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, failure in enumerate(failures):
            if failure is not None:
                raise RuntimeError(f"rank {rank}: {failure}")
        return value

    def check_same(self, own: Sequence[Held], **options: object) -> None:
        """Raises MismatchError on all ranks where they hold other parameters, or have been told
        something else; names the first parameter, or the option, and a rank."""
        told = self.gather(options)
        for rank, other in enumerate(told):
            for name, value in told[0].items():
                if other[name] != value:
                    raise MismatchError(
                        f"{name} is {value!r} on rank 0 and {other[name]!r} on rank {rank}: all "
                        f"ranks have to wrap the same with the same"
                    )
        held = self.gather([*own])
        for rank, others in enumerate(held):
            _check_alike(held[0], others, rank)

    def check_step(self) -> None:
        """Raises NotImplementedError inside DistributedDataParallel.join()."""
        joining = getattr(self._model, "_join_config", None)
        if joining is not None and joining.enable:
            raise NotImplementedError(
                "ranks that have run out of data take no steps inside "
                "DistributedDataParallel.join(), and each keeps a part of the optimizer's state: "
                "give all ranks the same number of batches"
            )


def _check_alike(first: Sequence[Held], other: Sequence[Held], rank: int) -> None:
    if len(first) != len(other):
        longer, here = (first, 0) if len(first) > len(other) else (other, rank)
        names = {each.name for each in (other if here == 0 else first)}
        alone = next((each.name for each in longer if each.name not in names), longer[-1].name)
        raise MismatchError(
            f"rank 0 has {len(first)} parameters and rank {rank} {len(other)}: '{alone}' is on "
            f"rank {here} alone. All ranks have to make the same model"
        )
    for one, two in zip(first, other, strict=True):
        if one == two:
            continue
        if one[:-1] == two[:-1]:
            raise MismatchError(
                f"parameter '{one.name}' has other values on rank {rank} than on rank 0: seed all "
                f"ranks alike or load one checkpoint, or make DistributedDataParallel of the model "
                f"before, which gives all ranks the values of rank 0"
            )
        raise MismatchError(
            f"rank 0 holds {_described(one)} where rank {rank} holds {_described(two)}: all ranks "
            f"have to make the same model, with the same parameters frozen"
        )


def _described(held: Held) -> str:
    kind = "trained" if held.trained else "frozen"
    return f"parameter '{held.name}' of shape {held.shape} ({held.dtype}, {kind})"


def ranks_of(
    model: nn.Module, group: dist.ProcessGroup | None, spread: bool
) -> tuple[nn.Module, Ranks | None]:
    """The module that has the parameters, and the ranks that train it: those of the
    DistributedDataParallel around it, or ``group``; where parameters are ``spread``, all processes
    if none is given. None: this process alone.

    Raises:
        TypeError: a model that is taken apart otherwise, or of which a part is inside
            DistributedDataParallel, or all of it where parameters are ``spread``; or ``group`` is
            no process group.
        ValueError: ``group`` is not that of the model, or this process is not in it.
        NotImplementedError: an option of DistributedDataParallel that needs parameters elsewhere.
    """
    if isinstance(model, nn.DataParallel):
        raise TypeError(
            "DataParallel copies parameters to several devices: give wrap() the module inside, or "
            "DistributedDataParallel with a process for each"
        )
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"process_group={group!r} is no process group: torch.distributed.new_group() makes "
            f"one, and torch.distributed.group.WORLD is that of all processes"
        )
    inner = model
    if spread and isinstance(model, DistributedDataParallel):
        raise TypeError(
            "shard_parameters=True averages gradients itself, and no rank has all parameters at "
            "once: give wrap() the model without DistributedDataParallel around it"
        )
    if spread and group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    if isinstance(model, DistributedDataParallel):
        _check_options(model)
        if group is not None and group is not model.process_group:
            raise ValueError(
                "process_group is another than that of DistributedDataParallel: leave it out"
            )
        group, inner = model.process_group, model.module
    for name, module in inner.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise TypeError(
                f"'{name}', a part of the model, is inside DistributedDataParallel: put the whole "
                f"model into it, and give that to wrap()"
            )
    if group is None or group.size() == 1:
        return inner, None
    return inner, Ranks(group, model)


def _check_options(model: DistributedDataParallel) -> None:
    if model.mixed_precision is not None:
        raise NotImplementedError(
            "DistributedDataParallel(mixed_precision=...) keeps copies of parameters of its own: "
            "leave it out; bfloat16 parameters, or torch.autocast, do the same"
        )
    ignored = sorted(
        name
        for name, parameter in model.module.named_parameters()
        if name in model.parameters_to_ignore and parameter.requires_grad
    )
    if ignored:
        raise NotImplementedError(
            f"DistributedDataParallel ignores parameter '{ignored[0]}', so its gradients differ "
            f"between ranks, and only one of them would step it: freeze it, or ignore none"
        )
