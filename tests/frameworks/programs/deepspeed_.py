import common
import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed(dist_backend=common.BACKEND)
model = common.model()
settings = {
    "train_micro_batch_size_per_gpu": common.BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(
    model=model,
    config={key: value for key, value in settings.items() if key != "optimizer"},
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
)
losses = []
for inputs, targets in common.batches(dist.get_rank(), dist.get_world_size()):
    loss = common.loss_of(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
common.report(losses, torch.nn.utils.parameters_to_vector(engine.module.parameters()))
dist.destroy_process_group()
