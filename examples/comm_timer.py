"""How much of a DDP step is communication: a hook around DDP's own averaging that notes times."""

# DDP reads the annotations of a hook themselves: they may not be turned into strings here.
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class CommunicationTimer:
    """Adds up the time in which at least one bucket of gradients is being averaged.

    Register it on a DDP model; `busy` is in seconds. Buckets that overlap count once, and time in
    which computation goes on meanwhile counts too: this is how long communication takes, not how
    long it delays.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.busy = 0.0
        self._lock = threading.Lock()
        self._open = 0
        self._since = 0.0
        model.register_comm_hook(None, self._hook)

    def _hook(
        self, group: dist.ProcessGroup | None, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        with self._lock:
            if self._open == 0:
                self._since = time.perf_counter()
            self._open += 1
        future = allreduce_hook(group or dist.group.WORLD, bucket)
        return future.then(self._finished)

    def _finished(self, future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        averaged = future.value()
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self.busy += time.perf_counter() - self._since
        return averaged
