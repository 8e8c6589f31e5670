"""Runs single tests of torch's own distributed suite over a given backend, one line of JSON each.

Started by run.py as `worker.py BACKEND [TORCH]`; reads test names from standard input. Torch's
suite opens and closes tests by the backend's name when it is imported. It is imported here as if
for gloo, with the gates that ask for MPI or NCCL but need neither opened, and run over BACKEND.
Ranks are forked from this process, which has imported everything and started nothing: a second a
test, not ten.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import tempfile
import time
import unittest
from typing import Any

WORLD_SIZE = 3
# In torch's repository, but not in its package; of every backend whose groups can be reconfigured.
FAULT_TOLERANCE = "test/distributed/test_c10d_fault_tolerance.py"
FAULT_TOLERANCE_PREFIX = "fault_tolerance."
DEADLINE_S = 60  # of one test, inside torch's own runner

# Reasons for skipping that are about the name of the backend, not about what the test needs.
OPENED = (
    "Only MPI supports",
    "Only Gloo backend",
    "Only gloo",
    "GLOO Batch",
    "does not support creating subgroups on CUDA",
    "backend does not support DistributedDataParallel",
    "DistributedDataParallel",
    "Nccl",
    "NCCL",
    "nccl",
    "Only Nccl",
    "backend which supports",
    "Test requires backend",
)


def prepare_environment() -> None:
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(WORLD_SIZE),
        MASTER_ADDR="localhost",
        INIT_METHOD="env://",
        CUDA_VISIBLE_DEVICES="",  # with one GPU and three ranks the suite would skip everything
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(DEADLINE_S),
        OMP_NUM_THREADS="1",
    )


def open_gates() -> None:
    """Replaces torch's skip decorators by ones that skip only for what is really missing."""
    from torch.testing._internal import common_distributed, common_utils

    def let_through(function: Any) -> Any:
        return function

    # Many tests that ask for GPUs never touch one over a backend that has CPU tensors.
    common_distributed.skip_if_no_gpu = let_through
    common_distributed.skip_if_small_worldsize = let_through
    common_distributed.skip_if_lt_x_gpu = lambda count, **options: let_through
    common_distributed.require_n_gpus_for_nccl_backend = lambda count, backend: let_through

    original = common_utils.skip_but_pass_in_sandcastle_if

    def skip_if(condition: bool, reason: str) -> Any:
        return original(condition and not any(text in reason for text in OPENED), reason)

    common_utils.skip_but_pass_in_sandcastle_if = skip_if


class LikeGloo(str):
    """The backend's name, for code that asks whether it is gloo to choose CPU tensors."""

    alias = "gloo"
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == self.alias or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def suite_class(backend: str) -> type[unittest.TestCase]:
    """Torch's suite as a test case that runs over `backend`."""
    import torch

    torch.set_num_threads(1)
    if backend == "taco":
        import taco_torch  # registers the backend

        # torch's own refuses every backend but gloo by name.
        torch.distributed.monitored_barrier = taco_torch.monitored_barrier
    open_gates()
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature] = {"gloo", backend}
    import cpu_stand_ins
    from torch.testing._internal.distributed import distributed_test as suite

    cpu_stand_ins.install(suite)
    suite.BACKEND = LikeGloo(backend)
    for supported in (
        suite.PROFILING_SUPPORTED_BACKENDS,
        suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        supported.append(backend)

    class Conformance(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Conformance


class LikeNccl2(LikeGloo):
    """The name of a backend that, as nccl2 and unlike gloo, reports a group that has failed."""

    alias = "nccl2"


def fault_tolerance_class(backend: str, torch_folder: str) -> type[unittest.TestCase]:
    """Torch's tests of groups that are reconfigured as a test case that runs over `backend`."""
    import torch
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    file = os.path.join(torch_folder, FAULT_TOLERANCE)
    spec = importlib.util.spec_from_file_location("fault_tolerance", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class FaultTolerance(module.AbstractFaultToleranceTest, MultiProcessTestCase):
        backend_name = LikeNccl2(backend) if backend != "gloo" else backend
        device_type = "cpu"

        def _spawn_processes(self) -> None:
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return FaultTolerance


def run_one(case: type[unittest.TestCase], name: str) -> dict[str, Any]:
    began = time.monotonic()
    result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(case(name))
    status, detail = "pass", ""
    if result.skipped:
        status, detail = "skip", result.skipped[0][1]
    elif result.failures or result.errors:
        status, detail = "fail", (result.failures + result.errors)[0][1]
    elif result.testsRun != 1:
        status, detail = "fail", "did not run"
    seconds = round(time.monotonic() - began, 2)
    return {"test": name, "status": status, "seconds": seconds, "detail": detail[-4000:]}


def main() -> None:
    prepare_environment()
    # Output of the tests goes to standard error; results alone go to standard output.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = {"": suite_class(sys.argv[1])}
    if sys.argv[2:]:
        cases[FAULT_TOLERANCE_PREFIX] = fault_tolerance_class(*sys.argv[1:])
    tests = {
        prefix + name: (case, name)
        for prefix, case in cases.items()
        for name in dir(case)
        if name.startswith("test_")
    }
    print(json.dumps({"names": list(tests)}), file=results, flush=True)
    for line in sys.stdin:
        name = line.strip()
        unknown = {"status": "fail", "seconds": 0, "detail": "torch has no test of this name"}
        result = run_one(*tests[name]) if name in tests else unknown
        print(json.dumps({**result, "test": name}), file=results, flush=True)


if __name__ == "__main__":
    main()
