"""A GPT on real text whose parameters and optimizer state are many times what memory may hold.

    python examples/train_large_lm.py --device 12MiB --host 16MiB --ssd out/zerocache:1GiB
    python examples/train_large_lm.py --in-memory

The text is Python's own reference manual, which help() carries: nothing is downloaded. Four lines
are ZeRO-Cache's (marked below); without --in-memory they build the model in pages that move between
the device, the host's memory and a disk. Both ways learn the same, step by step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from train_char_lm import Block, batch_of, reference_manual

UNTIL_STEADY = 3  # steps: the first is where the order of uses is learned


class LanguageModel(nn.Module):
    """A GPT with one weight for the embedding of tokens and for the scores of the next ones."""

    def __init__(self, vocabulary: int, arguments: argparse.Namespace) -> None:
        super().__init__()
        width = arguments.width
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(arguments.context, width)
        self.blocks = nn.ModuleList(
            Block(width, max(width // 64, 1)) for _ in range(arguments.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character, (batch * length, vocabulary)."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).flatten(0, 1))


def memory_of_process() -> tuple[int, int]:
    """Resident bytes of this process: now, and the most that it has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return tuple(int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore


def moved(before: dict[str, Any], after: dict[str, Any], steps: int) -> dict[str, float]:
    """Bytes a step by each way."""
    return {
        way: (found["bytes"] - before["ways"][way]["bytes"]) / steps
        for way, found in after["ways"].items()
    }


class SavedActivations:
    """Counts the bytes that a forward pass inside `with` saves for its backward pass beside the
    parameters, each storage once."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
        self._storages: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def __enter__(self) -> SavedActivations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def bytes(self) -> int:
        return sum(self._storages.values())


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains, and returns what it came to."""
    torch.manual_seed(0)
    training, _, vocabulary = reference_manual()
    before_bytes, _ = memory_of_process()
    cache = None
    with contextlib.ExitStack() as stack:
        if not arguments.in_memory:
            from taco_torch.zerocache import ZeroCache  # 1

            cache = stack.enter_context(  # 2
                ZeroCache(arguments.device, arguments.host, arguments.ssd, page=arguments.page)
            )
        with cache.init() if cache is not None else contextlib.nullcontext():  # 3
            model: nn.Module = LanguageModel(vocabulary, arguments)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if cache is not None:
            early = arguments.step_in_backward
            model, optimizer = cache.wrap(model, optimizer, step_in_backward=early)  # 4
        losses, seconds, steady = [], [], None
        saved = SavedActivations(model) if cache is None else None
        pace = 0.1 if sys.stderr.isatty() else 4.0
        progress = tqdm(range(arguments.steps), ncols=90, mininterval=pace)
        for step in progress:
            if cache is not None and step == UNTIL_STEADY:
                steady = cache.stats()
            began = time.perf_counter()
            tokens, targets = batch_of(training, arguments.batch, arguments.context, seed=step)
            with saved if saved and step == 0 else contextlib.nullcontext():
                loss = functional.cross_entropy(model(tokens), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - began)
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
        result = {
            "parameters": parameters,
            "state_bytes": 3 * 4 * parameters,
            "losses": losses,
            "step_s": statistics.median(seconds[UNTIL_STEADY:] or seconds),
            "peak_bytes": memory_of_process()[1] - before_bytes,
        }
        if saved is not None:
            result["activation_bytes"] = saved.bytes()
        if cache is not None:
            stats = cache.stats()
            result["tiers"] = {name: tier["capacity"] for name, tier in stats["tiers"].items()}
            steps = arguments.steps - UNTIL_STEADY if steady else arguments.steps
            nothing = {"ways": {way: {"bytes": 0} for way in stats["ways"]}}
            result["moved"] = moved(steady or nothing, stats, steps)
            result["report"] = cache.report()
            if arguments.plot:
                arguments.plot.parent.mkdir(parents=True, exist_ok=True)
                cache.plot(arguments.plot)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in-memory", action="store_true", help="plain torch, for comparison")
    parser.add_argument("--device", default="12MiB", help="cap for parameters in use")
    parser.add_argument("--host", default="16MiB", help="cap for pages that wait or are stepped")
    parser.add_argument("--ssd", default="out/zerocache:1GiB", help="directory:cap, for the rest")
    parser.add_argument("--page", default="1MiB", help="what moves at once")
    parser.add_argument(
        "--step-in-backward", action="store_true", help="step pages during the backward pass"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--context", type=int, default=128, help="characters of a sequence")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--plot", type=Path, help="picture of the last step: what lay where")
    arguments = parser.parse_args()
    if arguments.plot and arguments.in_memory:
        parser.error("--plot shows what lies where in a cache: leave --in-memory out")
    if not arguments.in_memory:
        Path(arguments.ssd.rpartition(":")[0]).mkdir(parents=True, exist_ok=True)
    result = train(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result))
    where = "in memory" if arguments.in_memory else "in a cache"
    print(
        f"{result['parameters'] / 1e6:.1f} M parameters {where}: loss {result['losses'][0]:.4f} -> "
        f"{result['losses'][-1]:.4f}, {result['step_s']:.2f} s a step, peak "
        f"{result['peak_bytes'] / 1e6:.0f} MB more than before the model was made"
    )
    if "report" in result:
        print(f"\n{result['report']}")
    return 0 if result["losses"][-1] < result["losses"][0] else 1


if __name__ == "__main__":
    sys.exit(main())
