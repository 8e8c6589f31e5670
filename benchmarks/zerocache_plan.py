"""Does ``ZeroCache.plan()`` predict what a step takes? Measured and predicted, from one run.

    python benchmarks/zerocache_plan.py [--steps 12] [--directory out/zerocache_plan]

The GPT of examples/train_large_lm.py is trained by several caches in one process, each of other
capacities, which take turns step by step: whatever else the machine does disturbs all alike. After
each turn every cache plans all capacities, from the times of computing and the speeds that it has
measured itself, and each plan is compared with the step of the cache that has those capacities. The
ratio is the median over turns of predicted / measured; 1 means that the plan is right.

The last column is what ``python -m taco_torch.zerocache.plan`` predicts, which knows of the model
no more than its size. Its speeds are measured by this program in each turn, without a cache: bare
copies in memory, bare reads and writes of the disk, one block of the model forward and backward,
and torch's fused AdamW.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional
from zerocache_step import bare_speeds

from taco_torch.zerocache import ZeroCache

TOP = Path(__file__).parents[1]
# Device and host, of about 290 MiB of parameters and state.
CAPS = [("12MiB", "16MiB"), ("12MiB", "150MiB"), ("100MiB", "220MiB")]
PAGE = 1 << 20
GOAL = 0.1
UNTIL_STEADY = 3


def seconds(work: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


class Speeds:
    """Speeds that the command is told of this machine, measured anew at each call."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from train_char_lm import Block

        width, tokens = arguments.width, arguments.batch * arguments.context
        self.folder = arguments.directory
        self.block = Block(width, max(width // 64, 1))
        self.x = torch.randn(arguments.batch, arguments.context, width, requires_grad=True)
        # As the command counts them: products forward, and twice that backward.
        self.operations = 3 * 2.0 * tokens * (12 * width**2 + arguments.context * width)
        self.stepped = torch.nn.Parameter(torch.zeros(16 << 20))
        self.stepped.grad = torch.zeros(16 << 20)
        self.adamw = torch.optim.AdamW([self.stepped], fused=True)
        self.adamw.step()

    def _pass(self) -> None:
        self.block(self.x).sum().backward()

    def now(self) -> dict[str, float]:
        """Options of the command."""
        self._pass()
        bare = bare_speeds(self.folder, PAGE)
        moved = 7 * self.stepped.nbytes  # reads all four, writes all but the gradient
        return {
            "device-gbs": bare["copy"] / 1e9,
            "disk-gbs": bare["read"] / 1e9,
            "disk-write-gbs": bare["write"] / 1e9,
            "flops": self.operations / seconds(self._pass, 5),
            "optimizer-gbs": moved / seconds(self.adamw.step, 3) / 1e9,
        }


def commanded(
    parameters: int,
    vocabulary: int,
    caps: tuple[str, str],
    speeds: dict[str, float],
    arguments: argparse.Namespace,
) -> float:
    """Seconds of a step, as the command predicts them."""
    told = {
        "params": parameters,
        "layers": arguments.layers,
        "vocabulary": vocabulary,
        "context": arguments.context,
        "tokens": arguments.batch * arguments.context,
        "device": caps[0],
        "host": caps[1],
        "ssd": "1GiB",
        "page": PAGE,
        **speeds,
    }
    command = [sys.executable, "-m", "taco_torch.zerocache.plan", "--json"]
    command += [word for name, value in told.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["step_s"])


class Training:
    """One cache and what it trains."""

    def __init__(self, stack: ExitStack, caps: tuple[str, str], arguments: Any) -> None:
        from train_char_lm import reference_manual
        from train_large_lm import LanguageModel

        torch.manual_seed(0)
        self.name = " + ".join(caps)
        self.batch, self.context = arguments.batch, arguments.context
        self.text, _, self.vocabulary = reference_manual()
        shape = argparse.Namespace(
            width=arguments.width, layers=arguments.layers, context=arguments.context
        )
        model = LanguageModel(self.vocabulary, shape)
        place = arguments.directory / caps[1]
        place.mkdir(parents=True, exist_ok=True)
        self.cache = stack.enter_context(ZeroCache(*caps, f"{place}:1GiB", page=PAGE))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.model, self.optimizer = self.cache.wrap(model, optimizer)

    def step(self, number: int) -> float:
        """Seconds that were waited for pages."""
        from train_char_lm import batch_of

        before = self.cache.stats()["stalled_s"]
        tokens, targets = batch_of(self.text, self.batch, self.context, seed=number)
        loss = functional.cross_entropy(self.model(tokens), targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(self.cache.stats()["stalled_s"] - before)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """For each capacities the medians of what was measured, and of each cache's predictions."""
    with ExitStack() as stack:
        trainings = [Training(stack, caps, arguments) for caps in CAPS]
        speeds = Speeds(arguments)
        turns: list[list[dict[str, Any]]] = [[] for _ in CAPS]
        for number in range(arguments.steps):
            waits = [training.step(number) for training in trainings]
            if number < UNTIL_STEADY:
                continue
            own = [training.cache.plan() for training in trainings]
            told = speeds.now()
            for index, caps in enumerate(CAPS):
                measured = own[index].measured_s
                plans = [training.cache.plan(*caps) for training in trainings]
                size, vocabulary = trainings[index].parameters, trainings[index].vocabulary
                by_command = commanded(size, vocabulary, caps, told, arguments)
                turns[index].append(
                    {
                        "step_s": measured,
                        "waited_s": waits[index],
                        "predicted_wait_s": own[index].waiting_s,
                        "ratios": [plan.step_s / measured for plan in plans],
                        "command": by_command / measured,
                    }
                )
    rows = []
    for training, found in zip(trainings, turns, strict=True):
        row: dict[str, Any] = {"caps": training.name}
        for key in ("step_s", "waited_s", "predicted_wait_s", "command"):
            row[key] = statistics.median(turn[key] for turn in found)
        columns = zip(*(turn["ratios"] for turn in found), strict=True)
        row["ratios"] = [statistics.median(column) for column in columns]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    made = Table(title="A step with device + host; the ratios are predicted / measured")
    headings = ["", "measured", "waited", "predicted wait"]
    for heading in [*headings, *(f"by {row['caps']}" for row in rows), "by the command"]:
        made.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        times = [row["step_s"], row["waited_s"], row["predicted_wait_s"]]
        cells = [f"{time:.3f} s" for time in times] + [f"{ratio:.2f}" for ratio in row["ratios"]]
        cells.append(f"{row['command']:.2f}")
        made.add_row(row["caps"], *cells)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--context", type=int, default=128, help="characters of a sequence")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--directory", type=Path, default=TOP / "out" / "zerocache_plan")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    if arguments.steps <= UNTIL_STEADY:
        parser.error(f"--steps={arguments.steps}: the first {UNTIL_STEADY} are not measured")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(TOP / "examples"))
    rows = measure(arguments)
    Console(width=None if sys.stdout.isatty() else 120).print(table(rows))
    missed = [row["caps"] for i, row in enumerate(rows) if abs(row["ratios"][i] - 1) > GOAL]
    apart = [row["caps"] for row in rows if abs(row["command"] - 1) > GOAL]
    for whose, found in (("its own cache", missed), ("the command", apart)):
        print(f"goal: by {whose} within {100 * GOAL:.0f}%; missed: {', '.join(found) or 'by none'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
