"""Training steps of a GPT in a page store beside plain torch in memory, and DeepSpeed where it is.

    python benchmarks/zerocache_step.py --directory out/zerocache --rounds 3
    python benchmarks/zerocache_step.py --directory out/zerocache --only half_on_disk --width 384

State is what AdamW trains with: the parameters and two moments, 12 bytes a parameter. Every
training runs in a process of its own; they take turns, and a ratio is the median over rounds of
ratios inside one round. A row's limit is the larger of plain torch's step and of the time that the
row's bytes take by each way, at the speeds of bare copies that this program measures in the same
round. Hits are the pages that had left and were back in time; the goal is 99%, and 90% where each
step takes another way. Bytes, of all ways together, stand beside the least that anybody could move
(a lower bound); the goal is 1.05x.

DeepSpeed (with its async_io, thus libaio) is compared if it can be imported: ZeRO-3 on one CPU
process, its optimizer's state on the disk, and then the parameters too. The page store gets caps
that hold as little in memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from launch import machine
from zerocache_training import VOCABULARY

HERE = Path(__file__).parent
CHUNK, TOTAL, DEPTH = 4 << 20, 256 << 20, 4
DEVICE_WAYS = ("host to device", "device to host")
DISK_WAYS = ("ssd to host", "host to ssd")
MEMORY = "all in memory (torch)"


class Row(NamedTuple):
    """One training beside that in memory. Caps are shares of the state's bytes."""

    title: str
    tokens: int
    way: str = "cache"
    device: float = 0.0
    host: float = 0.0
    on_disk: bool = False
    parameters: bool = False  # of DeepSpeed: on the disk too
    in_backward: bool = False  # of the cache: step_in_backward
    branchy: bool = False  # each step leaves out other blocks


ROWS = {
    "quarter_2048": Row("device 25%, host the rest, 2,048 tokens", 2048, device=0.25, host=1.0),
    "quarter_256": Row("device 25%, host the rest, 256 tokens", 256, device=0.25, host=1.0),
    "half_on_disk": Row("half of the state on the disk", 256, device=0.25, host=0.25, on_disk=True),
    "half_in_backward": Row(
        "half of the state on the disk, stepped in backward",
        256,
        device=0.25,
        host=0.25,
        on_disk=True,
        in_backward=True,
    ),
    "branchy_2048": Row(
        "a quarter of the blocks left out", 2048, "cache", 0.25, 0.5, True, branchy=True
    ),
    "branchy_in_backward": Row(
        "a quarter of the blocks left out, stepped in backward",
        2048,
        device=0.25,
        host=0.5,
        on_disk=True,
        in_backward=True,
        branchy=True,
    ),
    "state_on_disk": Row("moments on the disk", 256, device=0.36, host=0.06, on_disk=True),
    "state_in_backward": Row(
        "moments on the disk, stepped in backward",
        256,
        device=0.36,
        host=0.06,
        on_disk=True,
        in_backward=True,
    ),
    "all_on_disk": Row("moments and parameters on the disk", 256, "cache", 0.06, 0.06, True),
    "all_in_backward": Row(
        "moments and parameters on the disk, stepped in backward",
        256,
        device=0.06,
        host=0.06,
        on_disk=True,
        in_backward=True,
    ),
    "deepspeed_state": Row("DeepSpeed, moments on the disk", 256, "deepspeed"),
    "deepspeed_all": Row(
        "DeepSpeed, moments and parameters on the disk", 256, "deepspeed", parameters=True
    ),
}


def state_bytes(arguments: argparse.Namespace) -> int:
    """About what AdamW trains with."""
    width: int = arguments.width
    layers: int = arguments.layers
    parameters = layers * 12 * width * width + (VOCABULARY + 256) * width
    return 12 * parameters


def train(row: Row, way: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    state = state_bytes(arguments)
    job: dict[str, Any] = {
        "way": way,
        "tokens": row.tokens,
        "layers": arguments.layers,
        "width": arguments.width,
        "steps": arguments.steps,
        "warm_up": 3,
        "parameters": row.parameters,
        "in_backward": row.in_backward,
        "branchy": row.branchy,
        "device": int(row.device * state),
        "host": int(row.host * state),
        "ssd": f"{folder}:{2 * state >> 20}MiB" if row.on_disk else None,
        "directory": str(folder),
        "options": {"page": arguments.page, "threads": arguments.threads},
    }
    command = [sys.executable, str(HERE / "zerocache_training.py"), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    raise SystemExit(f"{row.title} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Seconds until all of them are done."""
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def bare_speeds(folder: Path, chunk: int = CHUNK) -> dict[str, float]:
    """Bytes per second of copies in memory by one thread, and of a disk read and written past the
    kernel's cache, so many chunks at a time."""
    chunks = TOTAL // chunk
    buffers = [mmap.mmap(-1, chunk) for _ in range(DEPTH + 1)]
    for buffer in buffers:
        buffer.write(os.urandom(chunk))
    began = time.perf_counter()
    for index in range(chunks):
        memoryview(buffers[index % DEPTH])[:] = memoryview(buffers[index % DEPTH + 1])
    found = {"copy": TOTAL / (time.perf_counter() - began)}
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        descriptor = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        try:

            def every(act: Callable[[Any, int], int]) -> Callable[[int], None]:
                def work(thread: int) -> None:
                    for index in range(thread, chunks, DEPTH):
                        act([buffers[thread]], index * chunk)

                return work

            writes = every(lambda buffer, at: os.pwritev(descriptor, buffer, at))
            reads = every(lambda buffer, at: os.preadv(descriptor, buffer, at))
            in_threads(DEPTH, writes)  # allocates
            found["write"] = TOTAL / in_threads(DEPTH, writes)
            found["read"] = TOTAL / in_threads(DEPTH, reads)
        finally:
            os.close(descriptor)
    return found


def judge(result: dict[str, Any], base: dict[str, Any], speeds: dict[str, float]) -> dict[str, Any]:
    """One round's figures of a row."""
    step, plain = statistics.median(result["seconds"]), statistics.median(base["seconds"])
    found = {
        "step_s": step,
        "memory_s": plain,
        "speed": plain / step,
        "peak": result["peak"],
        "memory_peak": base["peak"],
        "loss_apart": max(
            abs(a - b) / abs(b) for a, b in zip(result["losses"], base["losses"], strict=True)
        ),
        "limit_s": plain,
    }
    found |= {f"bare_{name}": speed for name, speed in speeds.items()}
    if "after" in result:
        steps = len(result["seconds"])
        before, after = result["before"], result["after"]
        moved = {
            way: (after["ways"][way]["bytes"] - before["ways"][way]["bytes"]) / steps
            for way in after["ways"]
        }
        copies = max(moved[way] for way in DEVICE_WAYS) / speeds["copy"]
        disk = max(moved[DISK_WAYS[0]] / speeds["read"], moved[DISK_WAYS[1]] / speeds["write"])
        hits = after["hits"] - before["hits"]
        missed = after["misses"] - before["misses"]
        found |= {
            "moved": moved,
            "limit_s": max(plain, copies, disk),
            "stalled_s": (after["stalled_s"] - before["stalled_s"]) / steps,
            "hit_rate": hits / max(1, hits + missed),
            "of_least": sum(result["run"]["moved"].values())
            / max(1, sum(result["run"]["least"].values())),
        }
    return found


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, of ratios too."""
    names = [name for name in rounds[0] if name != "moved"]
    found: dict[str, Any] = {
        name: statistics.median(each[name] for each in rounds) for name in names
    }
    found["of_limit"] = statistics.median(each["limit_s"] / each["step_s"] for each in rounds)
    if "moved" in rounds[0]:
        found["moved"] = {
            way: statistics.median(each["moved"][way] for each in rounds)
            for way in rounds[0]["moved"]
        }
    return found


def line(title: str, row: dict[str, Any]) -> str:
    moved = row.get("moved")
    cells = [
        title,
        f"{row['step_s'] * 1e3:.0f} ms",
        f"{row['memory_s'] * 1e3:.0f} ms",
        f"{row['speed']:.2f}",
        f"{row['limit_s'] * 1e3:.0f} ms" if moved else "-",
        f"{row['of_limit']:.2f}" if moved else "-",
        f"{row['stalled_s'] * 1e3:.0f} ms" if moved else "-",
        f"{row['hit_rate']:.1%}" if moved else "-",
        f"{row['of_least']:.2f}x" if moved else "-",
        f"{row['peak'] / 1e6:.0f} / {row['memory_peak'] / 1e6:.0f} MB",
        f"{sum(moved[way] for way in DISK_WAYS) / 1e6:.0f} MB" if moved else "-",
        f"{row['loss_apart']:.0e}",
    ]
    return f"| {' | '.join(cells)} |"


COLUMNS = [
    "",
    "step",
    "in memory",
    "speed",
    "limit",
    "of limit",
    "waited",
    "hits",
    "bytes of least",
    "peak, in memory",
    "disk a step",
    "loss apart",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("out/zerocache"), help="on a disk")
    parser.add_argument("--only", help=f"of {','.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="after 3 to warm up")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--page", default="4MiB", help="of the cache")
    parser.add_argument("--threads", type=int, help="of the cache; default: torch's")
    parser.add_argument("--json", type=Path, help="write every figure here")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(ROWS)
    if unknown := set(chosen) - set(ROWS):
        parser.error(f"--only {','.join(sorted(unknown))}: choose from {','.join(ROWS)}")
    if importlib.util.find_spec("deepspeed") is None:
        left_out = [name for name in chosen if ROWS[name].way == "deepspeed"]
        chosen = [name for name in chosen if name not in left_out]
        if left_out:
            print(f"left out, as deepspeed is not installed: {', '.join(left_out)}")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for _ in range(arguments.rounds):
        bases: dict[tuple[int, bool], dict[str, Any]] = {}
        for name in chosen:
            row = ROWS[name]
            with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
                alike = (row.tokens, row.branchy)
                if alike not in bases:
                    bases[alike] = train(row, "memory", arguments, Path(folder))
                speeds = bare_speeds(Path(folder))
                result = train(row, row.way, arguments, Path(folder))
            rounds[name].append(judge(result, bases[alike], speeds))
            print(f"  {name}: {rounds[name][-1]['step_s']:.3f} s", file=sys.stderr)
    state = state_bytes(arguments)
    print(
        f"A GPT with {state / 1e6:.0f} MB of parameters and moments, {arguments.rounds} rounds; "
        f"{machine()}\n"
    )
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    result = {name: middle(found) for name, found in rounds.items()}
    for name, found in result.items():
        print(line(ROWS[name].title, found))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": result, "rounds": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
