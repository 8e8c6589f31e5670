"""The same GPT trained in memory, and in a tenth of it: parameters and optimizer state on disk.

    python examples/demo_zerocache.py [--steps 20]

Prints one table, why the peak of memory is what it is, and saves out/demo_zerocache.png: what lay
where during the last step. The cache steps pages while the backward pass goes on, so that the disk
works beside it; torch has its fastest AdamW, the fused one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

TOP = Path(__file__).parents[1]
MEMORY, CACHE = "all in memory (torch)", "ZeRO-Cache"
# Fused steps round the last bit of a sum otherwise than torch's: losses are equal to about 1e-7.
TOLERANCE = 1e-5


def train(flags: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs one training in a process of its own, whose memory is that training's alone."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, str(TOP / "examples" / "train_large_lm.py"), *flags]
        command += ["--steps", str(arguments.steps), "--json", str(result)]
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            raise SystemExit(f"{' '.join(command)} failed with status {status}")
        return json.loads(result.read_text())


def difference(memory: dict[str, Any], cache: dict[str, Any]) -> float:
    """The largest relative difference between losses of the same step."""
    pairs = zip(memory["losses"], cache["losses"], strict=True)
    return max(abs(a - b) / abs(a) for a, b in pairs)


def megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"


def peak(memory: dict[str, Any], cache: dict[str, Any]) -> str:
    """Why the cache's peak of memory is what it is."""
    caps = cache["tiers"]["device"] + cache["tiers"]["host"]
    return (
        f"Of its peak of {megabytes(cache['peak_bytes'])}, {megabytes(caps)} are parameters and "
        f"state, {megabytes(memory['activation_bytes'])} activations\nthat the backward pass "
        "needs; the rest is gradients until they are stepped,\nand what torch computes with."
    )


def table(memory: dict[str, Any], cache: dict[str, Any]) -> Table:
    caps = cache["tiers"]["device"] + cache["tiers"]["host"]
    state = memory["state_bytes"]
    made = Table(
        title=f"A GPT of {memory['parameters'] / 1e6:.1f} M parameters, trained on Python's manual"
    )
    made.add_column("", no_wrap=True)
    for heading in (MEMORY, CACHE):
        made.add_column(heading, justify="right", no_wrap=True)
    slowdown = cache["step_s"] / memory["step_s"]
    read, written = cache["moved"]["ssd to host"], cache["moved"]["host to ssd"]
    losses = [f"{result['losses'][-1]:.6f}" for result in (memory, cache)]
    steps = [f"{memory['step_s']:.2f} s", f"{cache['step_s']:.2f} s ({slowdown:.2f}x)"]
    made.add_row("last loss", *losses)
    made.add_row("step", *steps)
    made.add_row("peak memory", megabytes(memory["peak_bytes"]), megabytes(cache["peak_bytes"]))
    held = f"{megabytes(caps)} (1 : {state / caps:.1f})"
    made.add_row("of it parameters and state", megabytes(state), held)
    made.add_row("read from the disk, each step", "-", megabytes(read))
    made.add_row("written to the disk, each step", "-", megabytes(written))
    return made


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=TOP / "out" / "zerocache")
    arguments = parser.parse_args(words)
    if arguments.steps < 4:
        parser.error(
            f"--steps {arguments.steps}: the first 3 learn the order of uses and are not timed; "
            "give 4 or more"
        )
    return arguments


def show(memory: dict[str, Any], cache: dict[str, Any], picture: Path, console: Console) -> bool:
    """Prints the table and what it needs to be understood, on a screen of 80 columns. Returns
    whether both have learnt the same."""
    console.print()
    console.print(table(memory, cache))
    apart, count = difference(memory, cache), len(memory["losses"])
    print(
        peak(memory, cache),
        f"what lay where in the last step: {picture.relative_to(TOP)}",
        f"losses of all {count} steps are equal to {apart:.1e} of their value",
        sep="\n",
    )
    if apart > TOLERANCE:
        print(f"that is more than {TOLERANCE:.0e}: something is wrong")
    return apart <= TOLERANCE


def main() -> int:
    arguments = parse(None)
    memory = train(["--in-memory"], arguments)
    picture = TOP / "out" / "demo_zerocache.png"
    directory = f"{arguments.directory}:1GiB"
    flags = ["--ssd", directory, "--step-in-backward", "--plot", str(picture)]
    cache = train(flags, arguments)
    console = Console(width=None if sys.stdout.isatty() else 80)
    return 0 if show(memory, cache, picture, console) else 1


if __name__ == "__main__":
    sys.exit(main())
