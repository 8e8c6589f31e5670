"""taco: a torch.distributed backend over HARP, a user-space transport for ordinary Ethernet.

Once this package is installed, torch finds the backend by itself. A program changes one line::

    import torch.distributed as dist
    dist.init_process_group(backend="taco")

``import taco_torch`` registers it too; a program needs that only where torch is told not to load
extensions (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``). Importing starts no thread and opens no socket, so
launchers and data loaders may fork afterwards. The compiled extension is loaded, and checked
against torch, when the first group is made or a name below is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from _taco_torch_autoload import autoload

if TYPE_CHECKING:
    from taco_torch import _C as _C
    from taco_torch import horovod as horovod
    from taco_torch import lightcc as lightcc
    from taco_torch import nccl as nccl
    from taco_torch import zerocache as zerocache
    from taco_torch._check import __version__
    from taco_torch.backend import Options, ProcessGroupTaco
    from taco_torch.counters import AlgorithmStats, LightccStats, PathStats, Stats, stats
    from taco_torch.errors import (
        AbortedError,
        CollectiveTimeoutError,
        MismatchError,
        PeerLostError,
        RendezvousError,
        TacoError,
        VersionMismatchError,
    )
    from taco_torch.groups import monitored_barrier
    from taco_torch.memory import empty
    from taco_torch.trace import dump, flight_recorder, timeline

__all__ = [
    "AbortedError",
    "AlgorithmStats",
    "CollectiveTimeoutError",
    "LightccStats",
    "MismatchError",
    "Options",
    "PathStats",
    "PeerLostError",
    "ProcessGroupTaco",
    "RendezvousError",
    "Stats",
    "TacoError",
    "VersionMismatchError",
    "__version__",
    "dump",
    "empty",
    "flight_recorder",
    "horovod",
    "lightcc",
    "monitored_barrier",
    "nccl",
    "stats",
    "timeline",
    "zerocache",
]

# The module of each name. A module is imported when one of its names is first used.
_HOMES = {
    "_C": "_extension",
    "__version__": "_check",
    **dict.fromkeys(("Options", "ProcessGroupTaco"), "backend"),
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "errors"),
    "monitored_barrier": "groups",
    "empty": "memory",
    **dict.fromkeys(("AlgorithmStats", "LightccStats", "PathStats", "Stats", "stats"), "counters"),
    **dict.fromkeys(("dump", "flight_recorder", "timeline"), "trace"),
}


def __getattr__(name: str) -> Any:
    if name in ("horovod", "lightcc", "nccl", "zerocache"):  # modules of their own
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


autoload()
