import tempfile

import common
import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments

# Trainer asks Accelerate, which takes the group that is there; --ddp_backend knows no other names.
dist.init_process_group(common.BACKEND)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = common.model()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.inner(inputs)
        return {"loss": common.loss_of(output, labels), "logits": output}


class Rows(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.inputs, self.labels = common.data().tensors

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=common.BATCH,
        num_train_epochs=1,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Rows())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert arguments.world_size == dist.get_world_size()
    common.report(losses, torch.nn.utils.parameters_to_vector(trainer.model.parameters()))
dist.destroy_process_group()
