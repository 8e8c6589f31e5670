"""taco: a torch.distributed backend over HARP, a user-space transport for ordinary Ethernet.

Importing this package registers the backend; nothing else of a program changes::

    import torch.distributed as dist, taco_torch
    dist.init_process_group(backend="taco")

Importing starts no thread and opens no socket: launchers and data loaders may fork afterwards.
"""

from taco_torch._check import check_torch

check_torch()

from taco_torch import _C  # noqa: E402
from taco_torch._C import Options, ProcessGroupTaco  # noqa: E402
from taco_torch.backend import register  # noqa: E402
from taco_torch.errors import (  # noqa: E402
    AbortedError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    RendezvousError,
    TacoError,
    VersionMismatchError,
)
from taco_torch.futures import install  # noqa: E402
from taco_torch.groups import monitored_barrier  # noqa: E402
from taco_torch.stats import AlgorithmStats, Stats, stats  # noqa: E402
from taco_torch.trace import dump, flight_recorder, timeline  # noqa: E402

__version__: str = _C.__version__

__all__ = [
    "AbortedError",
    "AlgorithmStats",
    "CollectiveTimeoutError",
    "MismatchError",
    "Options",
    "PeerLostError",
    "ProcessGroupTaco",
    "RendezvousError",
    "Stats",
    "TacoError",
    "VersionMismatchError",
    "__version__",
    "dump",
    "flight_recorder",
    "monitored_barrier",
    "stats",
    "timeline",
]

register()
install()
