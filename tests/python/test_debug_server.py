"""torch's debug server, asked about taco groups (torch 2.15 on). docs/troubleshooting.md."""

from __future__ import annotations

import contextlib
import html
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND
from own_ports import own_ports
from spawn_ranks import Ranks

import taco_torch
from taco_torch.group_reports import Answer, describe

needed = ("jinja2", "tabulate")
pytestmark = pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises")
serves = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)
    or not all(map(find_spec, needed))
    or not any(map(find_spec, ("aiohttp", "requests"))),
    reason="torch 2.15 brought it, and it needs jinja2, tabulate, and aiohttp or requests",
)

WORLD = 3
DEADLINE_S = 30.0
_works: list[Any] = []


def serve(rank: int, store_port: int, page_port: int) -> None:
    from torch.distributed import debug

    from taco_torch.debug import handlers

    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store_port)
    )
    debug.start_debug_server(port=page_port, handlers=handlers(), fetch_timeout=20.0)


def stop() -> None:
    from torch.distributed import debug

    if dist.get_rank() == 0:
        debug.stop_debug_server()


class Server:
    def __init__(self, port: int) -> None:
        self._port = port

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=60) as answer:
            return html.unescape(answer.read().decode())

    def page_with(self, path: str, *words: str) -> str:
        """The page, once it holds all of `words`: another process may not have come so far."""
        end, text = time.monotonic() + DEADLINE_S, ""
        while time.monotonic() < end:
            with contextlib.suppress(OSError):  # nobody listens yet
                text = self.page(path)
                if all(word in text for word in words):
                    return text
            time.sleep(0.05)
        raise AssertionError(f"{path} never had {words}: {text}")


@contextlib.contextmanager
def served(backend: str, **environment: str) -> Iterator[tuple[Ranks, Server]]:
    quiet = {"TACO_LOG": "error", "TORCH_FR_DUMP_ON_TIMEOUT": "0", **environment}
    with own_ports() as port, Ranks(WORLD, quiet) as ranks:
        ranks.initialise(backend)
        ranks.run_each(serve, [(rank, ranks.port, port) for rank in range(WORLD)])
        try:
            yield ranks, Server(port)
        finally:
            ranks.begin(0, stop)
            ranks.gather([0])


def sum_up() -> None:
    dist.all_reduce(torch.ones(100))


def begin_to_sum_up() -> None:
    _works.append(dist.all_reduce(torch.ones(100), async_op=True))


def end_it() -> None:
    _works.pop().wait()


def lose_a_rank() -> int:
    try:
        sum_up()
    except taco_torch.PeerLostError as error:
        return error.rank
    raise AssertionError("nobody was lost")


# torch's own pages


@serves
@pytest.mark.parametrize("backend", ["gloo", "taco"])
def test_torchs_pages_show_what_runs_and_the_health_of_every_rank(backend: str) -> None:
    with served(backend) as (ranks, server):
        ranks.run(sum_up)
        for rank in (0, 2):
            ranks.begin(rank, begin_to_sum_up)
        ranks.gather([0, 2])
        page = server.page_with(f"/fr_trace_json?backend={backend}", f"{backend}:all_reduce")
        if backend == "taco":  # gloo's are never more than scheduled
            assert page.count("taco:all_reduce") == 2, "of what has completed nothing is shown"
        page = server.page_with("/c10d_health_check", "healthy")
        assert page.count('"healthy":true') + page.count('"healthy": true') == WORLD, page
        for rank in range(WORLD):
            assert f"Rank {rank}:" in page
        ranks.begin(1, begin_to_sum_up)
        ranks.gather([1])
        ranks.run(end_it)


@serves
def test_a_dead_rank_makes_its_group_unhealthy_on_every_other(transport: str) -> None:
    with served("taco", TACO_TRANSPORT=transport) as (ranks, server):
        ranks.run(sum_up)
        ranks.kill(2)
        for rank in (0, 1):
            ranks.begin(rank, lose_a_rank)
        assert [outcome.value for outcome in ranks.gather([0, 1])] == [2, 2]
        page = server.page_with("/c10d_health_check", "unhealthy_backends", "taco")
        assert "Flight Recorder Dump" in page
        page = server.page_with("/taco_groups", "rank 2 is lost", "process 2 does not answer")
        assert "missing: rank 2 is lost\n" in page
        assert page.count("failed: ") == 2


# The page that taco adds


@serves
def test_a_rank_that_does_not_come_is_named_while_the_others_wait(transport: str) -> None:
    with served("taco", TACO_TRANSPORT=transport) as (ranks, server):
        ranks.run(sum_up)
        page = server.page_with("/taco_groups", "missing: none")
        assert "of 3 ranks" in page
        for rank in (0, 2):
            ranks.begin(rank, begin_to_sum_up)
        ranks.gather([0, 2])
        page = server.page_with("/taco_groups", "missing: rank 1 has not come to collective 2\n")
        assert "all_reduce SUM float32 x 100 (sequence 2)" in page
        assert "rank 1: 1 collectives started, nothing in flight" in page
        # So does torch's analysis of what its recorders hold. (Of gloo's it is an error.)
        assert "missing_ranks" in server.page_with("/fr_trace", "{1}")
        ranks.begin(1, begin_to_sum_up)
        ranks.gather([1])
        ranks.run(end_it)
        server.page_with("/taco_groups", "missing: none")


def report(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "0",
        "rank": rank,
        "world": 3,
        "sequence": 7,
        "error": "",
        "lost": -1,
        "destroyed": False,
        "answers": True,
        "open": [],
        **changes,
    }


@pytest.mark.parametrize(
    ("reports", "missing"),
    [
        ([report(0), report(1), report(2)], "none"),
        ([report(0, open=[(0, "a send")]), report(1, sequence=3), report(2)], "none"),
        (
            [report(0, open=[(7, "a"), (8, "b")], sequence=8), report(1, sequence=6), report(2)],
            "rank 1 has not come to collective 7",
        ),
        ([report(0), report(2)], "rank 1 is in no process that answers"),
        ([report(0), report(1, error="rank 2 died", lost=2)], "rank 2 is lost"),
        ([report(0), report(1, destroyed=True), report(2)], "rank 1 has left"),
        ([report(0), report(1, answers=False), report(2)], "rank 1's engine does not answer"),
    ],
)
def test_who_is_missing_follows_from_what_all_say(
    reports: list[dict[str, Any]], missing: str
) -> None:
    text = describe([Answer([one]) for one in reports])
    assert text.splitlines()[0] == f"group '0' of 3 ranks: missing: {missing}"


def test_a_process_that_could_have_answered_ends_in_peace() -> None:
    """torch's registry of handlers goes after the interpreter, and takes no part of it along."""
    program = (
        "import taco_torch.backend\n"
        "from taco_torch.group_reports import _answer\n"
        "class Last:\n"
        "    def __del__(self): pass\n"
        "_answer.note = Last()\n"  # a dict, as whoever looks at its annotations leaves there
        "del _answer\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_process_that_does_not_answer_is_named_with_the_reason() -> None:
    text = describe([Answer(), Answer(silence="refused")])
    assert text == "process 1 does not answer: refused"
    assert describe([Answer()]) == "no taco groups"


def own_report() -> list[dict[str, Any]]:
    from taco_torch import _C

    sum_up()
    return _C.group_reports()


def test_a_rank_reports_its_groups(ranks: Ranks) -> None:
    for rank, reports in enumerate(ranks.run(own_report)):
        (default,) = (one for one in reports if one["world"] == 4 and one["name"] == "0")
        assert default["rank"] == rank
        assert default["sequence"] > 0
        assert default["error"] == ""
        assert default["answers"]
