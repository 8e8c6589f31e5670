import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(common.BACKEND)
model = DistributedDataParallel(common.model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for inputs, targets in common.batches(dist.get_rank(), dist.get_world_size()):
    loss = common.loss_of(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
common.report(losses, torch.nn.utils.parameters_to_vector(model.parameters()))
dist.destroy_process_group()
