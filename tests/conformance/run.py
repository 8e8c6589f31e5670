"""Torch's own distributed tests as ours: every CPU test that gloo passes must pass over taco.

    python tests/conformance/run.py --backend taco              fails when less passes than before
    python tests/conformance/run.py --backend taco --update     writes what passes
    python tests/conformance/run.py --backend gloo --update     writes what gloo passes, the goal
    python tests/conformance/run.py --backend taco --test test_all_reduce_sum --verbose

Each minor version of torch has lists of its own, such as gloo_passes_2_13.txt; one without is
compared with the newest that is older. What gloo passes and taco does not stands in exceptions.txt
with its reason. `--torch FOLDER` names a checkout of torch's repository, whose tests of groups that
are reconfigured (2.14 on) are then run, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DEADLINE_S = 100.0  # of one test, after which its worker is ended and another one started


class Worker:
    """One worker.py in a session of its own, so that its ranks end with it."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log.open("a")
        self._folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, "TMPDIR": self._folder.name}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        first = self._next(120.0)
        if first is None or "names" not in first:
            self.close()
            raise RuntimeError(f"the worker did not start; see {log}")
        self.names: list[str] = first["names"]

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _next(self, timeout: float) -> dict[str, Any] | None:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def run(self, test: str) -> dict[str, Any] | None:
        """The test's result, or None when the worker died or took too long: then close it."""
        assert self._process.stdin
        try:
            self._process.stdin.write(test + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._next(DEADLINE_S)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._folder.cleanup()


class Campaign:
    """Runs tests on several workers at once, which are started with `arguments`."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.arguments = arguments
        self.log = log
        self.results: dict[str, dict[str, Any]] = {}
        self._waiting: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()

    def names(self) -> list[str]:
        worker = self._open()
        names = worker.names
        self._close(worker)
        return names

    def run(self, tests: list[str], jobs: int) -> dict[str, dict[str, Any]]:
        for test in tests:
            self._waiting.put(test)
        threads = [threading.Thread(target=self._work, args=(len(tests),)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for test in tests:  # no worker may have started
            missing = {"test": test, "status": "fail", "seconds": 0, "detail": "it was not run"}
            self.results.setdefault(test, missing)
        return self.results

    def close(self) -> None:
        """Ends every worker with its ranks. Idempotent."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
        for worker in list(self._workers):
            self._close(worker)

    def _open(self) -> Worker:
        worker = Worker(self.arguments, self.log)
        with self._lock:
            self._workers.add(worker)
        return worker

    def _close(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.close()

    def _work(self, total: int) -> None:
        worker: Worker | None = None
        try:
            while True:
                test = self._waiting.get_nowait()
                worker = worker or self._open()
                result = worker.run(test)
                if result is None:
                    self._close(worker)
                    worker = None
                    detail = f"no result within {DEADLINE_S} s, or the runner died"
                    result = {"test": test, "status": "fail", "seconds": 0, "detail": detail}
                self._note(result, total)
        except queue.Empty:
            pass
        finally:
            if worker:
                self._close(worker)

    def _note(self, result: dict[str, Any], total: int) -> None:
        with self._lock:
            self.results[result["test"]] = result
            done = len(self.results)
        mark = "" if result["status"] == "pass" else f"  {result['status'].upper()}"
        if mark or done % 20 == 0 or done == total:
            print(f"[{done}/{total}] {result['test']} {result['seconds']} s{mark}", flush=True)


def version_of(name: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", name)[:2]))


def list_of(backend: str) -> Path:
    """Where it stands what passes with the torch that runs."""
    return HERE / f"{backend}_passes_{'_'.join(map(str, version_of(version('torch'))))}.txt"


def read_passes(backend: str) -> set[str]:
    running = version_of(version("torch"))
    known = HERE.glob(f"{backend}_passes_*.txt")
    older = [path for path in known if version_of(path.name) <= running]
    return set(read_list(max(older, key=lambda path: version_of(path.name)))) if older else set()


def read_list(path: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def exceptions() -> set[str]:
    return {line.split(":")[0].strip() for line in read_list(HERE / "exceptions.txt")}


def expected(backend: str) -> set[str]:
    """Tests that must pass: those that passed before, and those that gloo passes but exceptions."""
    return read_passes(backend) | (read_passes("gloo") - exceptions())


def choose(campaign: Campaign, arguments: argparse.Namespace) -> list[str]:
    if arguments.test:
        return arguments.test
    if arguments.update:
        return campaign.names()
    names = sorted(expected(arguments.backend))
    return [name for name in names if arguments.torch or not name.startswith("fault_tolerance.")]


def error_line(detail: str) -> str:
    """The line of a report that names the error: the last one like "ValueError: ..."."""
    named = [line for line in detail.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or detail.strip().splitlines() or ["no report"])[-1]


def judge(results: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> int:
    """Compares with the kept list; 0 when nothing that passed before has been lost."""
    passed = sorted(test for test, result in results.items() if result["status"] == "pass")
    if arguments.update:
        list_of(arguments.backend).write_text("\n".join(passed) + "\n")
    kept = expected(arguments.backend) | set(arguments.expect)
    lost = sorted(test for test in kept & results.keys() if results[test]["status"] != "pass")
    gained = sorted(set(passed) - kept)
    seconds = sum(result["seconds"] for result in results.values())
    print(f"{arguments.backend}: {len(passed)} of {len(results)} pass ({seconds:.0f} s of tests)")
    for test in lost:
        print(f"LOST {test}: {error_line(results[test]['detail'])}")
    if gained and not arguments.test:
        print(f"{len(gained)} pass that the list lacks: --update would add them")
    return 1 if lost else 0


def run_campaign(
    backend: str,
    tests: Callable[[Campaign], list[str]],
    log: Path,
    arguments: argparse.Namespace,
) -> dict[str, dict[str, Any]]:
    campaign = Campaign([backend, *([arguments.torch] if arguments.torch else [])], log)
    began = time.monotonic()
    try:
        return campaign.run(tests(campaign), arguments.jobs)
    finally:
        campaign.close()
        print(f"{backend}: wall time {time.monotonic() - began:.0f} s")


def excuse(results: dict[str, dict[str, Any]], log: Path, arguments: argparse.Namespace) -> None:
    """Takes out what fails here over gloo too, though it passed where the list was made.

    A CUDA build of torch on a machine without a driver fails tests that a CPU build passes.
    """
    listed = read_passes("gloo")
    failed = [test for test in listed & results.keys() if results[test]["status"] != "pass"]
    if not failed:
        return
    for test, result in run_campaign("gloo", lambda _: failed, log, arguments).items():
        if result["status"] != "pass":
            print(f"not counted, gloo fails it here too: {test}: {error_line(result['detail'])}")
            del results[test]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["gloo", "taco"], required=True)
    parser.add_argument("--update", action="store_true", help="write the list of what passes")
    parser.add_argument("--test", action="append", help="only this test; may be repeated")
    parser.add_argument("--torch", help="a checkout of torch's repository")
    parser.add_argument("--expect", action="append", default=[], help="must pass, listed or not")
    parser.add_argument("--jobs", type=int, default=max(2, os.cpu_count() or 2))
    parser.add_argument("--verbose", action="store_true", help="print what failed, in full")
    parser.add_argument("--json", type=Path, help="every result")
    parser.add_argument("--log", type=Path, help="what the ranks print")
    arguments = parser.parse_args()
    if arguments.update and arguments.test:
        parser.error("--update needs a whole run")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        log = arguments.log or Path(folder) / "ranks.log"
        results = run_campaign(arguments.backend, lambda c: choose(c, arguments), log, arguments)
        if arguments.backend == "taco":
            excuse(results, log, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    if arguments.verbose:
        for result in results.values():
            if result["status"] != "pass":
                print(f"== {result['test']}\n{result['detail']}")
    return judge(results, arguments)


if __name__ == "__main__":
    sys.exit(main())
