import common
import lightning
import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy

fabric = lightning.Fabric(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=common.BACKEND)
)
fabric.launch()
model = common.model()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
loader = fabric.setup_dataloaders(
    torch.utils.data.DataLoader(common.data(), batch_size=common.BATCH)
)
losses = []
for inputs, targets in loader:
    loss = common.loss_of(model(inputs), targets)
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
    losses.append(fabric.all_gather(loss.detach()).mean().item())
common.report(losses, torch.nn.utils.parameters_to_vector(model.parameters()))
dist.destroy_process_group()
