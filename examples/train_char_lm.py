"""A small GPT under FSDP2 on real text, checkpointed with torch.distributed.checkpoint.

    torchrun --nproc-per-node 2 examples/train_char_lm.py --backend taco --steps 60
    torchrun --nproc-per-node 4 examples/train_char_lm.py --backend taco --steps 60 --resume
    torchrun ... examples/train_char_lm.py --backend taco --compress topk --ratio 0.01
    torchrun ... examples/train_char_lm.py --backend taco --compress topk --parallel ddp

The text is Python's own reference manual, which help() carries: nothing is downloaded. Parameters,
gradients and optimizer state are sharded over the ranks. A checkpoint written by two ranks can be
resumed on four, since torch re-shards it when reading.

With --compress, taco sends less of the gradients to other hosts (docs/lightcc.md). Each host then
has a replica of the model, which its ranks share out (HSDP); with --parallel ddp each rank has one.
On one host nothing crosses a network, and nothing is compressed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

CONTEXT = 96
WIDTH = 128
HEADS = 4
LAYERS = 3
COMPRESSIONS = ("none", "topk", "float16", "bfloat16")


def reference_manual() -> tuple[Tensor, Tensor, int]:
    """(training bytes, held-out bytes, vocabulary size) of Python's manual, as small integers."""
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    alphabet = sorted(set(text))
    number = {character: index for index, character in enumerate(alphabet)}
    data = torch.tensor([number[character] for character in text])
    cut = int(len(data) * 0.9)
    return data[:cut], data[cut:], len(alphabet)


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a normalisation and with a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm2(x))


class CharacterModel(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character, (batch * length, vocabulary)."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).flatten(0, 1))


class TrainingState(Stateful):
    """The contents of a checkpoint: the shards of model and optimizer, and the step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.step = 0

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = int(state["step"])


def mesh_of(arguments: argparse.Namespace) -> DeviceMesh:
    """All ranks in a row; where gradients are compressed, a row of ranks for each host."""
    world = dist.get_world_size()
    if arguments.compress == "none":
        return init_device_mesh("cpu", (world,))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world % ranks != 0:
        raise SystemExit(f"{world} ranks do not fill hosts of {ranks}: add --parallel ddp")
    return init_device_mesh("cpu", (world // ranks, ranks), mesh_dim_names=("replicate", "shard"))


def sharded_model(vocabulary: int, mesh: DeviceMesh) -> nn.Module:
    """Under FSDP2: each rank has its shard of every parameter."""
    model = CharacterModel(vocabulary)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def parallel_model(vocabulary: int, arguments: argparse.Namespace) -> nn.Module:
    if arguments.parallel == "ddp":
        model: nn.Module = DistributedDataParallel(CharacterModel(vocabulary))
    else:
        model = sharded_model(vocabulary, mesh_of(arguments))
    if arguments.compress != "none":
        from taco_torch import lightcc

        # This small model reduces less at a time than the size from which TopK pays.
        lightcc.compress(model, arguments.compress, ratio=arguments.ratio, threshold=0)
    return model


def batch_of(data: Tensor, size: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Characters and their successors, each (size, length); the seed selects the batch."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - length - 1, (size,), generator=generator)
    windows = torch.stack([data[start : start + length + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def held_out_loss(model: nn.Module, data: Tensor) -> float:
    """Mean cross-entropy (nats per character) over all ranks, each on a batch of its own."""
    tokens, targets = batch_of(data, 32, CONTEXT, seed=10_000 + dist.get_rank())
    with torch.no_grad():
        loss = functional.cross_entropy(model(tokens), targets.flatten())
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss.item()


def newest(folder: Path) -> Path:
    """The latest checkpoint in a folder of step-000060, step-000120, ..."""
    found = sorted(folder.glob("step-*/.metadata"))
    if not found:
        raise SystemExit(f"--resume: no checkpoint in {folder}")
    return found[-1].parent


def train(arguments: argparse.Namespace) -> bool:
    """Trains and saves a checkpoint; True if the loss on held-out text fell."""
    torch.manual_seed(0)
    training, held_out, vocabulary = reference_manual()
    model = parallel_model(vocabulary, arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    state = TrainingState(model, optimizer)
    first = dist.get_rank() == 0
    if arguments.resume:
        checkpoint.load({"training": state}, checkpoint_id=newest(arguments.checkpoint))
    before = held_out_loss(model, held_out)
    if first:
        start = "resumed at" if arguments.resume else "starts at"
        chance = math.log(vocabulary)
        print(f"{start} step {state.step}: held-out loss {before:.3f} (chance {chance:.3f})")
    began = time.perf_counter()
    pace = 0.1 if sys.stderr.isatty() else 4.0
    progress = tqdm(range(arguments.steps), disable=not first, ncols=90, mininterval=pace)
    for _ in progress:
        seed = state.step * dist.get_world_size() + dist.get_rank()
        tokens, targets = batch_of(training, arguments.batch, CONTEXT, seed)
        loss = functional.cross_entropy(model(tokens), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.step += 1
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    seconds = time.perf_counter() - began
    folder = arguments.checkpoint / f"step-{state.step:06}"
    checkpoint.save({"training": state}, checkpoint_id=folder)
    after = held_out_loss(model, held_out)
    if first:
        characters = arguments.steps * arguments.batch * CONTEXT * dist.get_world_size()
        print(
            f"{arguments.backend}: step {state.step}: held-out loss {before:.3f} -> {after:.3f}, "
            f"{characters / seconds:.0f} characters/s, checkpoint in {folder}"
        )
    return after < before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="taco")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--parallel", choices=("fsdp2", "ddp"), default="fsdp2")
    parser.add_argument("--compress", choices=COMPRESSIONS, default="none")
    parser.add_argument("--ratio", type=float, default=0.01, help="of elements that topk sends")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--checkpoint", type=Path, default=Path("out/char_lm"))
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"start it with torchrun: torchrun --nproc-per-node 2 {sys.argv[0]}")
    if arguments.compress != "none" and arguments.backend != "taco":
        parser.error("--compress is taco's: add --backend taco")
    dist.init_process_group(arguments.backend)
    with contextlib.ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        return 0 if train(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
