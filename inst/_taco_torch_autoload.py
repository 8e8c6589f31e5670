"""Registers "taco" with torch.distributed, at the cost of one dictionary entry.

Torch calls ``autoload`` itself at the end of ``import torch`` (entry point ``torch.backends``) and,
from 2.14 on, when a program asks for the backend by name (``torch.distributed.backends``). So it
runs in every program of an environment in which taco_torch is installed: it must not raise, must
not load the extension, and must not import anything that torch has not imported already.

It is a module beside the package, not one in it: a folder called ``taco_torch`` in the directory in
which a program is started hides the package, and every ``import torch`` would fail there. This way
such a folder matters only when a taco group is created, and the error then names it.

Nothing here imports torch at module level. So when ``import taco_torch`` triggers ``import torch``,
and torch calls ``autoload`` in the middle of that, this module is complete already.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _DistributedBackendOptions

    from taco_torch.backend import ProcessGroupTaco


def _in_place_of_the_package() -> str | None:
    """The path of what Python finds under the package's name, or None when it is the package."""
    import os
    import sys
    from importlib.util import find_spec

    module = sys.modules.get("taco_torch")
    spec = module.__spec__ if module is not None else find_spec("taco_torch")
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    if any(os.path.exists(os.path.join(folder, "backend.py")) for folder in folders):
        return None
    return os.path.abspath(folders[0] if folders else str(spec.origin))


def _create(options: "_DistributedBackendOptions", pg_options: object) -> "ProcessGroupTaco":
    """The creator that is registered. The first group loads the extension, which checks torch."""
    try:
        from taco_torch.backend import create
    except (Exception, SystemExit) as error:
        stranger = _in_place_of_the_package()
        if stranger is None:
            raise
        raise ImportError(
            f"{stranger} hides the installed package taco_torch, which therefore cannot be loaded. "
            "Rename it, or start the program from another folder"
        ) from error
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
