import common
import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology

dist.init_process_group(common.BACKEND)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
tables = [
    torchrec.EmbeddingBagConfig(
        name=name, embedding_dim=8, num_embeddings=100, feature_names=[name]
    )
    for name in ("user", "item")
]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = torchrec.EmbeddingBagCollection(tables=tables)
        self.over = torch.nn.Linear(16, 3)

    def forward(self, features: torchrec.KeyedJaggedTensor) -> torch.Tensor:
        return self.over(self.bags(features).values())


model = Model()
sharders = [EmbeddingBagCollectionSharder()]
planner = EmbeddingShardingPlanner(topology=Topology(world_size=world, compute_device="cpu"))
plan = planner.collective_plan(model, sharders, dist.group.WORLD)
model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
random = torch.Generator().manual_seed(5 + rank)
losses = []
for _ in range(common.STEPS):
    ids = torch.randint(100, (2 * common.BATCH * 3,), generator=random)
    features = torchrec.KeyedJaggedTensor.from_lengths_sync(
        ["user", "item"], ids, torch.full((2 * common.BATCH,), 3, dtype=torch.int32)
    )
    targets = ids[: common.BATCH * 3 : 3] % 3
    loss = common.loss_of(model(features), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
common.report(losses, torch.nn.utils.parameters_to_vector(model.module.over.parameters()))
dist.destroy_process_group()
