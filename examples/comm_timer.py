"""How much of a DDP step is communication: a hook around DDP's own averaging that measures time."""

# No "from __future__ import annotations" here: DDP checks the annotations of a hook, which must be
# types and not strings.
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class CommunicationTimer:
    """Adds up the time in which at least one bucket of gradients is being averaged.

    Creating one registers it on a DDP model; `busy` is in seconds. The time of buckets that
    overlap counts once. Time in which computation goes on as well counts too: this is how long
    communication takes, not by how much it delays a step.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.busy = 0.0
        self._lock = threading.Lock()
        self._open = 0
        self._since = 0.0
        model.register_comm_hook(model.process_group, self._hook)

    def _hook(
        self, group: dist.ProcessGroup, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        with self._lock:
            if self._open == 0:
                self._since = time.perf_counter()
            self._open += 1
        future = allreduce_hook(group, bucket)
        return future.then(self._finished)

    def _finished(self, future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        averaged = future.value()
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self.busy += time.perf_counter() - self._since
        return averaged
