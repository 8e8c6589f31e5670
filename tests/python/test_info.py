"""taco_torch.info, stats, versions and environment variables."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks
from warm_python import WarmPython

pytestmark = taco_only

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    """Programs begin where torch has been imported and taco_torch not."""
    with WarmPython(["torch"], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}) as made:
        yield made


@pytest.fixture
def run(python: WarmPython) -> Run:
    """Runs code, with variables of its own."""
    return lambda code, **own: python.run(["-c", code], {**os.environ, **own})


ONE_RANK = """
import torch, torch.distributed as dist, taco_torch
dist.init_process_group("taco", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.sum().item() == 3
"""


def test_info_prints_facts_for_people_and_machines() -> None:
    command = [sys.executable, "-m", "taco_torch.info"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    for word in ("versions", "transports", "interfaces", "TACO_TRANSPORT", "huge pages"):
        assert word in text
    facts = json.loads(
        subprocess.run(
            [*command, "--json"], capture_output=True, text=True, timeout=120, check=True
        ).stdout
    )
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["versions"]["libcrypto"].startswith("OpenSSL ")
    assert set(facts["transports"]) == {"shm", "udp"}
    assert any(entry["loopback"] for entry in facts["interfaces"])


@pytest.mark.parametrize("option", [[], ["--json"], ["--env-markdown"]])
def test_info_ends_quietly_when_nobody_reads_on(python: WarmPython, option: list[str]) -> None:
    """As `python -m taco_torch.info | head -1` does."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as unread, tempfile.TemporaryFile() as errors:
        process = python.popen(
            ["-m", "taco_torch.info", *option], None, None, unread.fileno(), errors.fileno()
        )
        assert process.wait(120) == -signal.SIGPIPE
        errors.seek(0)
        assert errors.read() == b""


def test_one_rank_alone_works_without_network(run: Run) -> None:
    done = run(ONE_RANK + "dist.destroy_process_group()")
    assert done.returncode == 0, done.stderr
    assert "world 1 = 1 host x 1 rank" in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TACO_TRANSPORT", "pigeon"),
        ("TACO_PEER_TIMEOUT_MS", "soon"),
        ("TACO_CHUNK_BYTES", "-4"),
        ("TACO_ISA", "mmx"),
        ("TACO_TUNE", "maybe"),
        ("LIGHT_TOPK_RATIO", "1.5"),
        ("LIGHT_TOPK_THRESHOLD", "-1"),
    ],
)
def test_a_malformed_variable_is_an_error_that_names_it(run: Run, name: str, value: str) -> None:
    done = run(ONE_RANK, **{name: value})
    assert done.returncode != 0
    assert "ValueError" in done.stderr
    assert name in done.stderr
    assert value in done.stderr


# Values of the right form that are unknown or cannot be met here. A group of one needs none.
UNMET = [
    ("TACO_ISA", "avx512" if platform.machine() == "aarch64" else "neon", "this host has only"),
    ("TACO_ALGORITHM", "rign", "did you mean ring?"),
    ("TACO_CONGESTION", "reno", "swift, paced_swift or cubic"),
    ("TACO_HARP_DRIVER", "verbs", "there are auto, udp, xdp and dpdk"),
    ("TACO_HARP_KEY_FILE", "/nonexistent/key", "No such file or directory"),
]


@pytest.mark.parametrize(("name", "value", "text"), UNMET)
def test_a_variable_that_cannot_be_met_is_an_error_that_names_it(
    run: Run, name: str, value: str, text: str
) -> None:
    done = run(ONE_RANK, **{name: value})
    assert done.returncode != 0
    assert re.search(rf'ValueError: .*{name}.*"{value}".*{text}', done.stderr), done.stderr


@pytest.mark.parametrize(("name", "value", "text"), UNMET)
def test_info_ends_with_what_cannot_be_met(run: Run, name: str, value: str, text: str) -> None:
    done = run("import taco_torch.info as info; raise SystemExit(info.main([]))", **{name: value})
    assert done.returncode == 1
    assert re.search(rf'error: .*{name}.*"{value}".*{text}', done.stderr), done.stderr


def test_info_shows_a_unit_behind_numbers_only(run: Run) -> None:
    done = run("import taco_torch.info as info; info.main([])", TACO_MTU="1400")
    shown = {line[2:30].strip(): line[31:] for line in done.stdout.splitlines()}
    assert shown["TACO_MTU"] == "1400 bytes"
    assert shown["LIGHT_FUSION_BYTES"] == "auto"
    assert shown["LIGHT_HIERARCHICAL_THRESHOLD"] == "(none)"


def test_info_counts_the_ports_that_a_process_opens(run: Run) -> None:
    """Sixteen over all its addresses, however many TACO_PATHS asks for."""
    code = """
import taco_torch.info as info
planned = info.collect()["planned_paths"]
most = max(entry["port"] for entry in planned["from"])
assert planned["ports_wanted"] == 8 and planned["ports"] >= most, planned
info._print_planned_paths({**planned, "ports": 5})
"""
    done = run(code, TACO_PATHS="8")
    assert done.returncode == 0, done.stderr
    assert "5 UDP ports at each address" in done.stdout
    assert "TACO_PATHS asks for 8, but a process opens 16 ports at most" in done.stdout


def test_an_unknown_variable_is_a_warning_with_the_nearest_name(run: Run) -> None:
    done = run(ONE_RANK, TACO_TRANSPRT="shm")
    assert done.returncode == 0, done.stderr
    assert "TACO_TRANSPRT" in done.stderr
    assert "TACO_TRANSPORT" in done.stderr


def test_another_torch_is_named_with_the_line_to_type(run: Run) -> None:
    code = """
import taco_torch._check as check
from taco_torch import VersionMismatchError
try:
    check.check_torch("2.99.0")
except VersionMismatchError as error:
    assert "2.99.0" in str(error) and check.built_for()[0] in str(error) and "pip" in str(error)
else:
    raise SystemExit("no error")
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_a_torch_that_nobody_has_tested_is_used_with_a_warning(run: Run) -> None:
    code = """
import warnings
import taco_torch._check as check
def said(version=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return check.check_torch(version), [str(one.message) for one in caught]
check._torches.append("2.99.0")  # as after `pip install .` beside it
extension, (warning,) = said("2.99.0")
assert extension == "_C_torch_2_99", extension
assert "2.99.0 is newer than" in warning, warning
assert said()[1] == [], said()
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_importing_starts_no_thread() -> None:
    code = "import os, torch; n = len(os.listdir('/proc/self/task')); import taco_torch; "
    code += "assert len(os.listdir('/proc/self/task')) == n"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("destroy", [True, False])
def test_leaving_with_work_pending_neither_hangs_nor_aborts(run: Run, destroy: bool) -> None:
    code = (
        ONE_RANK
        + """
work = dist.irecv(torch.zeros(3), 0) if False else dist.all_reduce(tensor, async_op=True)
work.get_future().then(lambda future: print("called back"))
"""
    )
    done = run(code + ("dist.destroy_process_group()" if destroy else ""))
    assert done.returncode == 0, done.stderr


def leave_with_receive_pending() -> None:
    request = dist.irecv(torch.zeros(3), (dist.get_rank() + 1) % dist.get_world_size())
    request.get_future().then(lambda future: None)


def test_leaving_with_a_receive_pending(transport: str) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "off"}) as ranks:
        ranks.initialise().run(leave_with_receive_pending)
        assert ranks.close(20) == [0, 0]


def counted() -> None:
    import taco_torch

    dist.barrier()
    before = taco_torch.stats()
    for _ in range(10):
        dist.all_reduce(torch.ones(250_000))
    change = taco_torch.stats() - before
    name, done = next(
        (name, done) for name, done in change.algorithms.items() if name.startswith("all_reduce/")
    )
    assert done.calls == 10, name
    assert done.seconds > 0
    moved = change.shm_bytes + change.bytes_sent
    assert moved >= 10 * 1_000_000


def test_stats_count_calls_and_bytes(ranks: Ranks) -> None:
    ranks.run(counted)


def timeline_and_recorder(folder: str) -> None:
    import taco_torch

    path = f"{folder}/trace-{dist.get_rank()}.json"
    with taco_torch.timeline(path):
        dist.all_reduce(torch.ones(1000))
        dist.barrier()
    with open(path) as file:
        trace = json.load(file)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    assert any("all_reduce" in str(event.get("name", "")) for event in events)
    entries = taco_torch.flight_recorder()["entries"]
    assert any("all_reduce" in str(entry) for entry in entries)
    assert "rank" in taco_torch.dump()


def test_timeline_flight_recorder_and_dump(ranks: Ranks, tmp_path) -> None:
    ranks.run(timeline_and_recorder, str(tmp_path))
