"""The compiled extension. Every module imports it from here: of those that are installed, this one
loads the one that was built for the running torch."""

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING

from taco_torch._check import check_torch


def _load() -> ModuleType:
    """As taco_torch._C, whatever its file is called."""
    file = check_torch() + EXTENSION_SUFFIXES[0]
    spec = spec_from_file_location("taco_torch._C", os.path.join(os.path.dirname(__file__), file))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    import taco_torch._C as _C
else:
    _C = _load()

__all__ = ["_C"]
