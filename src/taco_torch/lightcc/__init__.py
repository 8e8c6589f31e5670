"""LightCC: gradients are sent between hosts in fewer bytes, and training learns the same.

Without a change to the program, for every DistributedDataParallel, and every model of fully_shard
(FSDP2), over taco groups::

    LIGHT_WIRE_DTYPE=float16 torchrun ... train.py

or for one model::

    model = DistributedDataParallel(model)
    taco_torch.lightcc.compress(model, "topk", ratio=0.01)

``topk`` (LIGHT_TOPK_ALLREDUCE=1) works between replicas: under DistributedDataParallel, and under
FSDP2 on meshes of two dimensions (HSDP). On a mesh of one dimension ``compress(model, "topk")`` is
an error; where the variable asks for it, gradients go as LIGHT_WIRE_DTYPE says. What ``topk`` does
not send in one step is kept and added to the next one's gradients. A rank keeps one shard of the
gradients for it. docs/lightcc.md explains what to choose.
"""

from taco_torch.lightcc.ddp import Hook, compress, hook
from taco_torch.lightcc.ledger import dropped, used
from taco_torch.lightcc.manual import all_reduce_gradients
from taco_torch.lightcc.state import flush, load_state_dict, state_dict

__all__ = [
    "Hook",
    "all_reduce_gradients",
    "compress",
    "dropped",
    "flush",
    "hook",
    "load_state_dict",
    "state_dict",
    "used",
]
