import common
import torch
import torch.distributed as dist
from accelerate import Accelerator

# Accelerate takes the group that is there; by itself it would make one of gloo.
dist.init_process_group(common.BACKEND)
accelerator = Accelerator(cpu=True)
model = common.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(common.data(), batch_size=common.BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for inputs, targets in loader:
    loss = common.loss_of(model(inputs), targets)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    losses.append(accelerator.gather(loss.detach()).mean().item())
assert accelerator.num_processes == dist.get_world_size()
common.report(losses, torch.nn.utils.parameters_to_vector(model.parameters()))
dist.destroy_process_group()
