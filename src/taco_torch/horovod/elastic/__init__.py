"""Training that goes on when ranks are lost, and takes new ones in: ``horovod.torch.elastic``.

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, batches):
            step(state.model, state.optimizer)
            if state.batch % 10 == 0:
                state.commit()

    train(hvd.elastic.TorchState(model, optimizer, batch=0))

Started by ``tacorun --min-np`` (docs/launch.md), which puts the worlds together.
"""

from taco_torch.horovod.elastic.running import run, run_fn
from taco_torch.horovod.elastic.sampler import ElasticSampler
from taco_torch.horovod.elastic.state import HostUpdateResult, ObjectState, State
from taco_torch.horovod.elastic.torch_state import (
    TorchState,
    get_handler_registry,
    set_handler_registry,
)

__all__ = [
    "ElasticSampler",
    "HostUpdateResult",
    "ObjectState",
    "State",
    "TorchState",
    "get_handler_registry",
    "run",
    "run_fn",
    "set_handler_registry",
]
