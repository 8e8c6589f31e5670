"""Two replica groups of one rank each, as threads of this process, as torchft's own tests have
them."""

import threading
from datetime import timedelta

import common
import torch
import torch.distributed as dist
import torchft
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupGloo

import taco_torch

REPLICAS = 2


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


def replica(
    index: int,
    model: torch.nn.Module,
    lighthouse: str,
    reports: list[tuple[list[float], torch.Tensor]],
) -> None:
    # The manager's address is the store of its replica group.
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    kind = ProcessGroupTaco if common.BACKEND == "taco" else ProcessGroupGloo
    manager = torchft.Manager(
        pg=kind(timeout=timedelta(seconds=30)),
        min_replica_size=REPLICAS,
        load_state_dict=lambda state: None,
        state_dict=lambda: {},
        replica_id=f"replica_{index}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        init_sync=False,
        use_async_quorum=False,
    )
    ddp = torchft.DistributedDataParallel(manager, model)
    managed = torchft.Optimizer(manager, optimizer)
    losses = []
    for inputs, targets in common.batches(index, REPLICAS):
        managed.zero_grad()
        loss = common.loss_of(ddp(inputs), targets)
        loss.backward()
        managed.step()
        losses.append(loss.item())
    assert manager.current_step() == len(losses), "a step was dropped"
    assert manager.num_participants() == REPLICAS
    reports[index] = losses, torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    manager.shutdown(wait=False)


lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=20_000)
reports: list = [None] * REPLICAS
models = [common.model() for _ in range(REPLICAS)]  # here: threads share one random generator
threads = [
    threading.Thread(target=replica, args=(index, models[index], lighthouse.address(), reports))
    for index in range(REPLICAS)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
lighthouse.shutdown()
assert torch.equal(reports[0][1], reports[1][1]), "replicas diverged"
common.report(*reports[0], common.BACKEND)
