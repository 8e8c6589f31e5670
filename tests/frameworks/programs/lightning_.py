import common
import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.inner = common.model()
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = common.loss_of(self.inner(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend=common.BACKEND),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Classifier()
trainer.fit(model, torch.utils.data.DataLoader(common.data(), batch_size=common.BATCH))
common.report(
    model.losses, torch.nn.utils.parameters_to_vector(model.parameters()), dist.get_backend()
)
