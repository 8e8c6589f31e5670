"""TorchState: models, optimizers, schedulers and samplers that survive a change of ranks."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch

from taco_torch.horovod.basics import rank
from taco_torch.horovod.elastic.sampler import ElasticSampler
from taco_torch.horovod.elastic.state import ObjectState
from taco_torch.horovod.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)


class StateHandler:
    """Saves, restores and synchronises one value of a state. Subclasses are for values of a type,
    which has ``state_dict()`` and ``load_state_dict()``."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Makes the value rank 0's, and saves it. Collective."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """For modules."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """For optimizers, DistributedOptimizer among them."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class LRSchedulerStateHandler(StateHandler):
    """For learning rate schedulers."""


class SamplerStateHandler(StateHandler):
    """For ElasticSampler. What all ranks have processed is known to each: they count alike."""


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, LRSchedulerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Pairs of a type and the handler of its values; the first that fits counts."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """The state of a training program: every keyword is an attribute of it.

    Args:
        model: a module, or None.
        optimizer: an optimizer, or None.
        kwargs: more modules, optimizers, learning rate schedulers and ElasticSamplers, each of
            which is handled as such; other values as Python objects.
    """

    _handlers: ClassVar[dict[str, StateHandler]] = {}  # until __init__ has made its own

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        given = {**kwargs, "model": model, "optimizer": optimizer}
        handlers = {name: _handler_of(value) for name, value in given.items()}
        found = {name: handler for name, handler in handlers.items() if handler is not None}
        object.__setattr__(self, "_handlers", found)
        for name, handler in found.items():
            object.__setattr__(self, name, handler.value)
        rest = {name: value for name, value in given.items() if name not in found}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **rest)

    def save(self) -> None:
        """Copies of all values, in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """All values as they were saved."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Rank 0's values, on every rank. Collective."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Shares samplers' indices out among the ranks that there are now."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
