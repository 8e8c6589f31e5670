import common
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group(common.BACKEND)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = common.model()
for layer in model:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for inputs, targets in common.batches(dist.get_rank(), dist.get_world_size()):
    loss = common.loss_of(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
whole = [parameter.full_tensor().flatten() for parameter in model.parameters()]
common.report(losses, torch.cat(whole).detach())
dist.destroy_process_group()
