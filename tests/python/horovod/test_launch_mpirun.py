"""Ranks that a real mpirun has started, of Open MPI or MPICH (Hydra): the place of each."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import taco_only
from launching import environment, write

PYTHON = sys.executable
# Each rank writes a file of its own: mpirun may join the lines of several ranks.
PLACE = """
    from taco_torch.horovod.environment import world
    place = world()
    with open(f"found.{place.rank}", "w") as file:
        print("place", place.rank, place.size, place.local_rank, place.local_size, file=file)
"""
SUM = """
    import torch
    import horovod.torch as hvd
    hvd.init()
    total = hvd.allreduce(torch.full((1000,), float(hvd.rank() + 1)), op=hvd.Sum)
    with open(f"found.{hvd.rank()}", "w") as file:
        print("sum", float(total[0]), hvd.size(), hvd.local_rank(), hvd.local_size(), file=file)
    hvd.shutdown()
"""


def kind_of(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        return ""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" if "Open MPI" in said.stdout else "Hydra" if "HYDRA" in said.stdout else ""


OPEN_MPI = next((p for p in ("mpirun.openmpi", "mpirun") if kind_of(p) == "Open MPI"), None)
HYDRA = next((p for p in ("mpirun.mpich", "mpirun") if kind_of(p) == "Hydra"), None)
needs_open_mpi = pytest.mark.skipif(OPEN_MPI is None, reason="no mpirun of Open MPI is installed")
needs_hydra = pytest.mark.skipif(HYDRA is None, reason="no mpirun of MPICH is installed")
# The right of root to run it, and of two ranks to share a core: containers and small machines.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OVERSUBSCRIBE = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def run(words: list[str], folder: Path, **variables: str) -> list[str]:
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(**AS_ROOT, **OVERSUBSCRIBE, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line for path in folder.glob("found.*") for line in path.read_text().splitlines())


@needs_open_mpi
def test_ranks_of_open_mpi_know_their_places(tmp_path: Path) -> None:
    assert OPEN_MPI is not None
    program = write(tmp_path, PLACE)
    words = [OPEN_MPI, "-np", "2", "-H", "localhost:2", PYTHON, program]
    assert run(words, tmp_path) == ["place 0 2 0 2", "place 1 2 1 2"]


@needs_hydra
def test_ranks_of_hydra_know_their_places(tmp_path: Path) -> None:
    assert HYDRA is not None
    program = write(tmp_path, PLACE)
    found = run([HYDRA, "-np", "2", PYTHON, program], tmp_path)
    assert [line.split()[:3] for line in found] == [["place", "0", "2"], ["place", "1", "2"]]


@taco_only
@needs_open_mpi
def test_command_lines_for_horovod_run_as_they_stand(tmp_path: Path) -> None:
    """But for the script, which stands behind `-m taco_torch.horovod`."""
    assert OPEN_MPI is not None
    program = write(tmp_path, SUM, "script.py")
    flags = "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include lo"
    exported = "-x PATH -x LD_LIBRARY_PATH -x NCCL_DEBUG=INFO -x HOROVOD_CYCLE_TIME=1"
    words = [OPEN_MPI, "-np", "2", "-H", "localhost:2", *flags.split(), *exported.split()]
    found = run(
        [*words, PYTHON, "-m", "taco_torch.horovod", program],
        tmp_path,
        LD_LIBRARY_PATH="",
        TACO_LOG="error",
    )
    assert found == ["sum 3.0 2 0 2", "sum 3.0 2 1 2"]


def two_at_once(command: list[str], folder: Path) -> None:
    """Two jobs of one command, on one host, each of which waits for the other to have begun."""
    text = textwrap.dedent(SUM).replace(
        "hvd.shutdown()",
        """
import os, sys, time
open(f"../began.{sys.argv[1]}", "w").close()
while not all(os.path.exists(f"../began.{number}") for number in "01"):
    time.sleep(0.02)
total = hvd.allreduce(torch.full((9,), float(sys.argv[1])), op=hvd.Sum)
assert total.tolist() == [2.0 * float(sys.argv[1])] * 9
hvd.shutdown()
""",
    )
    program = write(folder, text, "script.py")
    jobs = [folder / number for number in "01"]
    for job in jobs:
        job.mkdir()
    words = [*command, PYTHON, "-m", "taco_torch.horovod", program]
    with ThreadPoolExecutor(2) as threads:
        begun = [threads.submit(run, [*words, job.name], job, TACO_LOG="error") for job in jobs]
        for each in begun:
            assert each.result() == ["sum 3.0 2 0 2", "sum 3.0 2 1 2"]


@taco_only
@needs_open_mpi
def test_two_jobs_of_open_mpi_on_one_host_do_not_meet(tmp_path: Path) -> None:
    assert OPEN_MPI is not None
    two_at_once([OPEN_MPI, "-np", "2", "-H", "localhost:2", "-bind-to", "none"], tmp_path)


@taco_only
@needs_hydra
def test_two_jobs_of_hydra_on_one_host_do_not_meet(tmp_path: Path) -> None:
    assert HYDRA is not None
    two_at_once([HYDRA, "-np", "2"], tmp_path)


@taco_only
@needs_hydra
def test_ranks_of_hydra_work_together(tmp_path: Path) -> None:
    assert HYDRA is not None
    program = write(tmp_path, SUM, "script.py")
    words = [HYDRA, "-np", "2", PYTHON, "-m", "taco_torch.horovod", program]
    found = run(words, tmp_path, TACO_LOG="error")
    assert found == ["sum 3.0 2 0 2", "sum 3.0 2 1 2"]
