"""LightCC: gradients are sent between hosts in fewer bytes, and training learns the same.

Without a change to the program, for every DistributedDataParallel, and every model of fully_shard
(FSDP2), over taco groups::

    LIGHT_TOPK_ALLREDUCE=1 torchrun ... train.py

or for one model::

    model = DistributedDataParallel(model)
    taco_torch.lightcc.compress(model, "topk", ratio=0.01)

What is not sent in one step (``topk``) is kept and added to the next one's gradients. A rank keeps
one shard of the gradients for it. docs/lightcc.md explains what to choose.
"""

from taco_torch.lightcc.ddp import Hook, compress, hook
from taco_torch.lightcc.manual import all_reduce_gradients
from taco_torch.lightcc.state import flush, load_state_dict, state_dict

__all__ = [
    "Hook",
    "all_reduce_gradients",
    "compress",
    "flush",
    "hook",
    "load_state_dict",
    "state_dict",
]
