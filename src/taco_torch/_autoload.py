"""Makes "taco" known to torch.distributed at the price of a dictionary's entry.

Torch calls ``autoload`` itself at the end of ``import torch`` (entry point ``torch.backends``) and,
from 2.14 on, when somebody asks for the backend by name (``torch.distributed.backends``). So it
runs in every program of an environment where taco_torch is installed: it must not raise, load the
extension, or import what torch has not imported already.

Nothing here imports torch at module level: torch, half-way through its own import by
``import taco_torch``, finds this module complete.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from taco_torch.backend import ProcessGroupTaco


def _create(options: "_DistributedBackendOptions", pg_options: object) -> "ProcessGroupTaco":
    """The registered creator: the first group loads the extension, and checks that it fits."""
    from taco_torch.backend import create

    return create(options, pg_options)


def _register() -> None:
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "TACO"):
        dist.Backend.register_backend("taco", _create, extended_api=True, devices=["cpu", "cuda"])


def autoload() -> None:
    """Registers the backend. Any number of calls; never raises: what fails is logged, and torch
    then says that it knows no backend of this name."""
    try:
        _register()
    except Exception:
        logging.getLogger("taco_torch").exception("the backend taco could not be registered")
