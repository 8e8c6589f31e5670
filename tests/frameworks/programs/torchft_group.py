"""taco as torchft's groups have it: docs/frameworks.md shows this class."""

import torch
import torch.distributed as dist
import torchft

import taco_torch


class ProcessGroupTaco(torchft.process_group.ProcessGroupWrapper):
    def _create_pg(self, store, rank, world_size):
        group = dist.ProcessGroup(store, rank, world_size)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        backend = taco_torch.ProcessGroupTaco(store, rank, world_size, None, self._timeout, "", [])
        group._set_default_backend(kind)
        group._register_backend(torch.device("cpu"), kind, backend)
        return group

    def getBackendName(self):
        return "torchft-taco"
