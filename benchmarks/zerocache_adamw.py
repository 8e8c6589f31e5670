"""A step of AdamW by a page store that has room for everything, beside torch's.

    python benchmarks/zerocache_adamw.py                  64 Mi parameters, one thread and two
    python benchmarks/zerocache_adamw.py --millions 16 --threads 1 --rounds 3

float32 parameters beside ``torch.optim.AdamW(fused=True)``. bfloat16 parameters beside what is done
without a fused step: the gradient is converted to float32, torch's fused AdamW steps a float32
master copy, and that is converted back. The two take turns of some steps each; a ratio is the
median of the ratios of a turn's medians. Gradients are there already and stay where they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from launch import machine
from torch import Tensor, nn

PIECE = 4 << 20  # parameters of one tensor
STEPS = 5  # in a turn
RATES = {"lr": 1e-6, "weight_decay": 0.1}
Step = Callable[[], object]


def pieces(millions: int, dtype: torch.dtype) -> nn.ParameterList:
    """With gradients."""
    torch.manual_seed(0)
    model = nn.ParameterList(
        nn.Parameter(torch.randn(PIECE).to(dtype)) for _ in range((millions << 20) // PIECE)
    )
    for parameter in model:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return model


def fused(millions: int) -> Step:
    return torch.optim.AdamW(pieces(millions, torch.float32), fused=True, **RATES).step


def unfused_mixed(millions: int) -> Step:
    halves = pieces(millions, torch.bfloat16)
    masters = [nn.Parameter(half.detach().float()) for half in halves]
    optimizer = torch.optim.AdamW(masters, fused=True, **RATES)

    def step() -> None:
        for half, master in zip(halves, masters, strict=True):
            assert half.grad is not None
            master.grad = half.grad.float()
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)

    return step


def in_pages(millions: int, dtype: torch.dtype) -> Step:
    from taco_torch.zerocache import ZeroCache

    model = pieces(millions, dtype)
    gradients: list[Tensor | None] = [parameter.grad for parameter in model]
    room = 8 * (millions << 20) + (256 << 20)
    cache = ZeroCache(device=room, host=2 * room)
    model, optimizer = cache.wrap(model, torch.optim.AdamW(model.parameters(), **RATES))

    def step() -> None:
        for parameter, gradient in zip(model, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return step


def seconds(step: Step) -> float:
    """Seconds of the steps of a turn; the first may wait for the other's threads to rest."""
    took: list[float] = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def compare(peer: Step, ours: Step, rounds: int) -> dict[str, float]:
    turns = [(seconds(peer), seconds(ours)) for _ in range(rounds + 2)][2:]
    return {
        "peer": statistics.median(turn[0] for turn in turns),
        "ours": statistics.median(turn[1] for turn in turns),
        "ratio": statistics.median(turn[0] / turn[1] for turn in turns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--millions", type=int, default=64, help="parameters, in Mi: fours")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    if arguments.millions < 4 or arguments.millions % 4:
        parser.error(f"--millions: {arguments.millions} is no multiple of 4")
    found: dict[str, dict[str, float]] = {}
    print(machine())
    print("| parameters | threads | torch | page store | faster |\n|---|--:|--:|--:|--:|")
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for dtype, peer in ((torch.float32, fused), (torch.bfloat16, unfused_mixed)):
            name = str(dtype).removeprefix("torch.")
            row = compare(
                peer(arguments.millions), in_pages(arguments.millions, dtype), arguments.rounds
            )
            found[f"{name} {threads}"] = row
            print(
                f"| {name} | {threads} | {row['peer'] * 1e3:.1f} ms | {row['ours'] * 1e3:.1f} ms "
                f"| {row['ratio']:.2f}x |",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
