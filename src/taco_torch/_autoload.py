"""Registers "taco" with torch.distributed, at the cost of one dictionary entry.

Torch calls ``autoload`` itself at the end of ``import torch`` (entry point ``torch.backends``) and,
from 2.14 on, when a program asks for the backend by name (``torch.distributed.backends``). So it
runs in every program of an environment in which taco_torch is installed: it must not raise, must
not load the extension, and must not import anything that torch has not imported already.

Nothing here imports torch at module level. So when ``import taco_torch`` triggers ``import torch``,
and torch calls ``autoload`` in the middle of that, this module is complete already.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from taco_torch.backend import ProcessGroupTaco


def _create(options: "_DistributedBackendOptions", pg_options: object) -> "ProcessGroupTaco":
    """The creator that is registered. The first group loads the extension, which checks torch."""
    from taco_torch.backend import create

    return create(options, pg_options)


def _register() -> None:
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "TACO"):
        dist.Backend.register_backend("taco", _create, extended_api=True, devices=["cpu", "cuda"])


def autoload() -> None:
    """Registers the backend. May be called any number of times. Never raises: an error is logged,
    and torch then reports that it knows no backend of this name."""
    try:
        _register()
    except Exception:
        logging.getLogger("taco_torch").exception("the backend taco could not be registered")
