"""Processes that train in a ZeroCache and save are killed at random moments; each goes on from what
the one before left, and finds at least its last save, bit for bit.

    python tests/support/zerocache_kills.py --kills 200 DIRECTORY

A process resumes, compares its parameters with those of a training that nobody disturbed, and then
steps and saves by turns. A SIGKILL ends it a few milliseconds after one of the things that it says,
both drawn, as are its caps. Prints, as JSON, what was hit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers load it with their first step: once, for all processes
from zerocache_models import TinyGPT, adamw, batches, make_cache, train

Say = Callable[[str], None]
CAPS = ((12, 12, 400), (16, 8, 400), (40, 200, 100), (12, 300, 0))
# Words that begin a line of a process's output. "resumed" goes on with the step and a digest, the
# others with the step.
RESUMED, STEPPING, SAVING, SAVED = "resumed", "stepping", "saving", "saved"


def digest(cache: Any, model: torch.nn.Module) -> int:
    found = 0
    for parameter in model.parameters():
        found = zlib.crc32(cache.full(parameter).numpy().tobytes(), found)
    return found


def wrapped(folder: Path, caps: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    model = TinyGPT(2)
    cache = make_cache(folder if caps[2] else None, *caps, threads=1)
    return cache, *cache.wrap(model, adamw(model))


def resume_and_go_on(
    folder: Path, caps: tuple[int, int, int], say: Say, last: int | None = None, save: bool = True
) -> None:
    """Until step ``last``; says the digest of each step where it does not save."""
    cache, model, optimizer = wrapped(folder / "cache", caps)
    saved = folder / "saved"
    exists = (saved / "checkpoint.manifest").exists()
    step = cache.load(saved)["step"] if exists else 0
    say(f"{RESUMED} {step} {digest(cache, model)}")
    data = batches()
    for _ in range(step):
        next(data)
    while step != last:
        say(f"{STEPPING} {step}")
        train(model, optimizer, 1, data)
        step += 1
        if save:
            say(f"{SAVING} {step}")
            cache.save(saved, {"step": step})
            say(f"{SAVED} {step}")
        else:
            say(f"{RESUMED} {step} {digest(cache, model)}")
    cache.close()


class Child:
    """A forked process and what it says."""

    def __init__(self, work: Callable[[Say], None]) -> None:
        readable, writable = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            os.close(readable)
            self._be(work, writable)
        os.close(writable)
        self._said = os.fdopen(readable)

    @staticmethod
    def _say(writable: int, line: str) -> None:
        os.write(writable, f"{line}\n".encode())

    @classmethod
    def _be(cls, work: Callable[[Say], None], writable: int) -> None:
        status = 1
        try:
            work(partial(cls._say, writable))
            status = 0
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def lines(self) -> Iterator[list[str]]:
        for line in self._said:
            yield line.split()

    def end(self) -> int:
        self._said.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])


def check(right: bool, what: str) -> None:
    if not right:
        raise SystemExit(what)


class Undisturbed:
    """A training that nobody kills, beside: it runs ahead by what a pipe holds."""

    def __init__(self, folder: Path) -> None:
        self._child = Child(lambda say: resume_and_go_on(folder, CAPS[0], say, save=False))
        self._digests: list[int] = []

    def digest_at(self, step: int) -> int:
        lines = self._child.lines() if step >= len(self._digests) else iter(())
        for words in lines:
            if words[0] == RESUMED:
                self._digests.append(int(words[2]))
            if step < len(self._digests):
                break
        check(step < len(self._digests), "the training that nobody disturbs has failed")
        return self._digests[step]

    def end(self) -> None:
        os.kill(self._child.number, signal.SIGKILL)
        self._child.end()


def campaign(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    (folder / "reference").mkdir(parents=True)
    (folder / "killed").mkdir()
    events = [draw.randrange(0, 8) for _ in range(kills)]
    undisturbed = Undisturbed(folder / "reference")
    last, hit = 0, Counter[str]()
    for number, event in enumerate(events):
        caps, delay = draw.choice(CAPS), draw.uniform(0, 0.03)
        child = Child(lambda say, caps=caps: resume_and_go_on(folder / "killed", caps, say))
        doing, said = "resuming", 0
        for words in child.lines() if event > 0 else ():
            doing, step, said = words[0], int(words[1]), said + 1
            if doing == RESUMED:
                where = f"kill {number}: step {step} after one that had saved {last}"
                check(step >= last, f"{where}: a save that had returned is lost")
                check(
                    int(words[2]) == undisturbed.digest_at(step),
                    f"{where}: other parameters than undisturbed",
                )
            last = step if doing in (RESUMED, SAVED) else last
            if said == event:
                break
        check(event in (0, said), f"kill {number}: the process ended by itself")
        time.sleep(delay if event > 0 else draw.uniform(0, 0.3))
        os.kill(child.number, signal.SIGKILL)
        for words in child.lines():  # what it said before it died
            doing = words[0]
            last = int(words[1]) if doing in (RESUMED, SAVED) else last
        check(child.end() == -signal.SIGKILL, f"kill {number}: it ended by itself")
        hit[doing] += 1
        print(f"\r{number + 1} killed", end="", file=sys.stderr, flush=True)
    undisturbed.end()
    print(file=sys.stderr)
    return {"kills": kills, "saved": last, "last_said": dict(hit)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="is made")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import taco_torch.zerocache  # noqa: F401  (as above)

    print(json.dumps(campaign(arguments.directory, arguments.kills, arguments.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
