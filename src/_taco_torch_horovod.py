"""Lets ``import horovod.torch as hvd`` find ``taco_torch.horovod``, for programs that stay as they
are.

Beside the package, since a file in site-packages may load this whenever Python starts
(taco_torch/horovod/alias.py): it imports nothing that Python has not loaded by then, and taco_torch
only when a name of Horovod's is first used.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The version of Horovod whose torch API is there.
COMPATIBLE_WITH = "0.28.1"

_OURS = "taco_torch.horovod"
# Where the names of each of Horovod's modules are. None: nowhere, the module has submodules only.
_HOMES: dict[str, str | None] = {
    "horovod": None,
    "horovod.common": None,
    "horovod.common.elastic": f"{_OURS}.elastic",
    "horovod.common.exceptions": f"{_OURS}.exceptions",
    "horovod.common.process_sets": _OURS,
    "horovod.torch": _OURS,
    "horovod.torch.compression": _OURS,
    "horovod.torch.elastic": f"{_OURS}.elastic",
    "horovod.torch.elastic.sampler": f"{_OURS}.elastic",
    "horovod.torch.elastic.state": f"{_OURS}.elastic",
    "horovod.torch.functions": _OURS,
    "horovod.torch.mpi_ops": _OURS,
    "horovod.torch.optimizer": _OURS,
    "horovod.torch.sync_batch_norm": _OURS,
}
_SPECIAL = ("__all__", "__version__")


class Facade(ModuleType):
    """A module of Horovod's name: what is asked of it is looked up in ours, so that a class is the
    same by either name."""

    def __getattr__(self, name: str) -> Any:
        home = _HOMES[self.__name__]
        if home is not None and (not name.startswith("__") or name in _SPECIAL):
            return getattr(import_module(home), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        home = _HOMES[self.__name__]
        return sorted({*super().__dir__(), *(dir(import_module(home)) if home else ())})


class Finder(MetaPathFinder, Loader):
    """Finds Horovod's modules: before all other finders, or behind them, where a horovod that is
    installed wins."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top != "horovod" or (fullname != top and not isinstance(sys.modules[top], Facade)):
            return None  # a real horovod has its own submodules
        if fullname in _HOMES:
            return ModuleSpec(fullname, self, origin=_OURS, is_package=_has_submodules(fullname))
        if fullname.count(".") == 1:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: this is taco_torch's Horovod-compatible API, which "
                "has horovod.torch alone",
                name=fullname,
            )
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Facade(spec.name, f"{_HOMES[spec.name] or _OURS} by the name that Horovod gives it.")

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "horovod":
            module.__version__ = COMPATIBLE_WITH  # type: ignore[attr-defined]


def _has_submodules(name: str) -> bool:
    return any(other.startswith(f"{name}.") for other in _HOMES)


def install(first: bool) -> None:
    """Before all other finders, or behind them. A second call changes nothing but the place."""
    sys.meta_path[:] = [
        each
        for each in sys.meta_path
        if type(each).__name__ != "Finder" or type(each).__module__ != __name__
    ]
    sys.meta_path.insert(0 if first else len(sys.meta_path), Finder())
