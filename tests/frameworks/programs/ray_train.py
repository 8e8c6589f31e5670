import os

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
import common
import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def loop(backend: dict[str, str]) -> None:
    common.BACKEND = backend["backend"]
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(common.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in common.batches(rank, dist.get_world_size()):
        loss = common.loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    common.report(losses, torch.nn.utils.parameters_to_vector(model.parameters()))


folder = os.path.dirname(os.path.abspath(__file__))
ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": folder}})
trainer = TorchTrainer(
    loop,
    train_loop_config={"backend": common.BACKEND},
    torch_config=TorchConfig(backend=common.BACKEND),
    scaling_config=ScalingConfig(num_workers=2),
)
trainer.fit()
