"""How benchmarks place their ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# Reports the cores that this thread and one that ran before binding may use.
RANK = """
import json, os, sys, threading
sys.path.insert(0, sys.argv[1])
from launch import bind
may_look, found = threading.Event(), []
def look():
    may_look.wait()
    found.append(sorted(os.sched_getaffinity(0)))
thread = threading.Thread(target=look)
thread.start()
core = bind(int(sys.argv[2]))
may_look.set()
thread.join()
print(json.dumps([core, sorted(os.sched_getaffinity(0)), found[0]]))
"""


def test_ranks_take_cores_by_turns_with_all_their_threads() -> None:
    cores = sorted(os.sched_getaffinity(0))
    for rank in (0, 1, len(cores)):
        command = [sys.executable, "-c", RANK, str(BENCHMARKS), str(rank)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        core = cores[rank % len(cores)]
        assert json.loads(said) == [core, [core], [core]]
