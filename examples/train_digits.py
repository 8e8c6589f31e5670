"""DDP training of a convolutional net on 1,797 real images of handwritten digits.

    torchrun --nproc-per-node 2 examples/train_digits.py --backend taco
    torchrun ... examples/train_digits.py --backend taco --compress topk --ratio 0.01

Reaches at least 97% test accuracy in well under a minute on two cores, and prints what share of the
time was communication. The data comes with scikit-learn: nothing is downloaded.

--compress has taco send less of the gradients to other hosts (docs/lightcc.md). On one host nothing
crosses a network, and nothing is compressed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Imported before a group exists. Otherwise DDP imports it later, and its functions then keep the
# default group as a default argument for ever: gloo's threads would outlive destroy_process_group,
# and a thread that is still running while the interpreter shuts down aborts the process.
import torch.distributed.nn
from comm_timer import CommunicationTimer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

TEST_IMAGES = 360
WARM_STEPS = 5  # not timed: the first steps make buckets and connections
COMPRESSIONS = ("none", "topk", "float16", "bfloat16")


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images (n, 1, 8, 8) in [0, 1] with their labels, split by the seed."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return images[train], labels[train], images[test], labels[test]


def convolutional_net() -> nn.Module:
    """356,810 parameters: 1.4 MB of gradients a step."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 2 * 2, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def shards(count: int, epoch: int, batch: int, seed: int) -> list[Tensor]:
    """This rank's batches of indices for one epoch; no image belongs to two ranks."""
    generator = torch.Generator().manual_seed(seed * 1000 + epoch)
    order = torch.randperm(count, generator=generator)
    world = dist.get_world_size()
    mine = order[: count - count % world][dist.get_rank() :: world]
    return [part for part in mine.split(batch) if len(part) == batch]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def replicas_agree(model: nn.Module) -> bool:
    """Whether every rank ended with the same parameters, bit for bit."""
    mine = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).view(torch.int32)
    low, high = mine.clone(), mine.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return torch.equal(low, high)


class Sent:
    """Counts bytes that this rank sends to other hosts: its share of what leaves by an interface
    of the host's own, or else what taco sends for it."""

    def __init__(self, backend: str, interface: str | None) -> None:
        self._interface = interface
        self.known = interface is not None or backend == "taco"
        self._start = self._count()

    def _count(self) -> float:
        if self._interface is not None:
            path = Path(f"/sys/class/net/{self._interface}/statistics/tx_bytes")
            return int(path.read_text()) / int(os.environ["LOCAL_WORLD_SIZE"])
        if not self.known:
            return 0.0
        import taco_torch

        return taco_torch.stats().bytes_sent

    def restart(self) -> None:
        self._start = self._count()

    def by_host(self) -> float | None:
        """Since restart(), the mean over hosts; None if nobody counts. Collective."""
        if not self.known:
            return None
        total = torch.tensor(self._count() - self._start, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / int(os.environ["GROUP_WORLD_SIZE"])


def compress_gradients(model: DistributedDataParallel, arguments: argparse.Namespace) -> None:
    """From here on taco sends less of the model's gradients to other hosts."""
    from taco_torch import lightcc

    # The buckets of this small net are below the size from which TopK pays in a real one.
    lightcc.compress(
        model,
        arguments.compress,
        ratio=arguments.ratio,
        threshold=0,
        warm_up_steps=arguments.warm_up,
    )


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(arguments.seed)
    images, labels, test_images, test_labels = digits(arguments.seed)
    model = DistributedDataParallel(convolutional_net())
    timer = None
    if arguments.compress == "none":
        timer = CommunicationTimer(model)
    else:  # a model has one communication hook
        compress_gradients(model, arguments)
    sent = Sent(arguments.backend, arguments.interface)
    epochs = [
        shards(len(labels), epoch, arguments.batch, arguments.seed)
        for epoch in range(arguments.epochs)
    ]
    steps = sum(len(epoch) for epoch in epochs)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    pace = 0.1 if sys.stderr.isatty() else 4.0  # a log file needs no animation
    progress = tqdm(
        total=steps, disable=dist.get_rank() != 0, unit="step", mininterval=pace, ncols=90
    )
    progress.set_description(f"{arguments.backend:>5}")
    start = 0.0
    for step, index in enumerate(index for epoch in epochs for index in epoch):
        if step == WARM_STEPS:
            start = time.perf_counter()
            sent.restart()
            if timer:
                timer.busy = 0.0
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(images[index]), labels[index])
        loss.backward()
        optimizer.step()
        schedule.step()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        progress.update()
    seconds = time.perf_counter() - start
    progress.close()
    timed = steps - WARM_STEPS
    host_bytes = sent.by_host()
    busy = timer.busy if timer else None
    return {
        "backend": arguments.backend,
        "world": dist.get_world_size(),
        "accuracy": accuracy(model.module, test_images, test_labels),
        "images_per_s": timed * arguments.batch * dist.get_world_size() / seconds,
        "step_ms": 1e3 * seconds / timed,
        "communication_ms": None if busy is None else 1e3 * busy / timed,
        "communication_share": None if busy is None else busy / seconds,
        "compress": arguments.compress,
        "host_bytes_per_step": None if host_bytes is None else host_bytes / timed,
        "replicas_identical": replicas_agree(model),
    }


def train_seeds(arguments: argparse.Namespace) -> dict[str, Any]:
    """A training for each seed: the first one's result, and how many test images each got right."""
    results = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        results.append(train(argparse.Namespace(**{**vars(arguments), "seed": seed})))
    return {
        **results[0],
        "replicas_identical": all(result["replicas_identical"] for result in results),
        "right": [round(result["accuracy"] * TEST_IMAGES) for result in results],
        "test_images": TEST_IMAGES,
    }


def summary(result: dict[str, Any], seconds: float) -> str:
    text = (
        f"{result['backend']}: test accuracy {result['accuracy']:.1%} on {TEST_IMAGES} images "
        f"after {seconds:.1f} s; {result['images_per_s']:.0f} images/s; "
        f"step {result['step_ms']:.1f} ms"
    )
    if result["communication_share"] is not None:
        text += f", {result['communication_share']:.0%} of it in communication"
    if result["compress"] != "none":
        text += f"; gradients by {result['compress']}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="taco")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64, help="images per rank and step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="trainings, from --seed on")
    parser.add_argument("--compress", choices=COMPRESSIONS, default="none")
    parser.add_argument("--ratio", type=float, default=0.01, help="of elements that topk sends")
    parser.add_argument("--warm-up", type=int, default=0, help="steps until topk is at its ratio")
    parser.add_argument("--interface", help="count what leaves by it; default: what taco counts")
    parser.add_argument("--json", type=Path, help="where rank 0 writes the result")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"start it with torchrun: torchrun --nproc-per-node 2 {sys.argv[0]}")
    if arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: nothing would be trained; give 1 or more")
    if arguments.compress != "none" and arguments.backend != "taco":
        parser.error("--compress is taco's: add --backend taco")
    dist.init_process_group(arguments.backend)
    with contextlib.ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        began = time.perf_counter()
        result = train_seeds(arguments)
        if dist.get_rank() == 0:
            print(summary(result, time.perf_counter() - began))
            if arguments.json:
                arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["replicas_identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
