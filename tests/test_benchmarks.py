"""How benchmarks place their ranks, and what their report says about goals."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("gloo", "taco", "limit", "shown"),
    [
        (1.00, 1.00, 1.00, "taco/limit 1.000 | <= 1.03 | yes"),
        (1.10, 1.10, 1.00, "taco/limit 1.100 | <= 1.03 | no"),
        (0.97, 1.00, 1.00, "taco/gloo 1.031 | <= 1.02 | no"),
        (1.00, 1.10, 1.00, "taco/limit 1.100, taco/gloo 1.100 | <= 1.03, <= 1.02 | no"),
    ],
)
def test_a_missed_goal_shows_the_conditions_that_it_misses(
    monkeypatch: pytest.MonkeyPatch, gloo: float, taco: float, limit: float, shown: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import report

    text, run, kind, size, _ = next(goal for goal in report.GOALS if goal[-1][0] == "limit")
    rows = [
        {"collective": kind, "bytes": size, "backend": name, "median_s": seconds}
        for name, seconds in (("gloo", gloo), ("taco", taco))
    ]
    rows[1]["times_limit"] = taco / limit
    monkeypatch.setattr(report, "load", lambda name: {"rows": rows} if name == run else None)
    assert report.collective_goals(run) == [
        f"| {text} | {gloo * 1e3:.0f} ms | {taco * 1e3:.0f} ms | {shown} |"
    ]


def test_tables_of_sending_less_say_what_they_were_measured_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import report

    row = {"seconds": 0.5, "limit_s": 0.4, "host_bytes": 1e6, "host_bytes_limit": 1e6}
    result = {
        "machine": {"cpu": "A processor", "tcp": "bbr", "load": 2.25},
        "left_out": {},
        "choices": {"gloo": row},
    }
    only = "scaling_all_reduce"
    monkeypatch.setattr(report, "load", lambda name: result if name == only else None)
    title, _, machine, _, heads, *_ = report.sending_less_lines()
    assert title == f"## Sending less: {report.SCALING_TITLES[only]}"
    assert machine == "A processor, TCP bbr, load 2.2 at the end."
    assert heads.startswith("| choice | time |")


def test_candidates_take_turns_in_an_order_that_is_reversed_from_turn_to_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pairs

    order: list[str] = []

    def candidate(name: str) -> dict[str, float]:
        order.append(name)
        return {"gbit": float(len(order))}

    candidates = {name: functools.partial(candidate, name) for name in "abc"}
    rows = pairs.by_turns(candidates, turns=2)
    assert "".join(order) == "abccba"
    assert [row["gbit"] for row in rows["a"]] == [1.0, 6.0]


def test_a_ratio_is_the_median_of_those_within_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pairs

    # A slow minute for both: the ratio of medians would be 20 / 20.
    ours = [{"gbit": value} for value in (10.0, 20.0, 30.0)]
    theirs = [{"gbit": value} for value in (20.0, 40.0, 15.0)]
    assert pairs.ratio(ours, theirs, "gbit") == (0.5, 0.5, 2.0)


def test_figures_that_a_program_did_not_print_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pairs

    said = "sent 8 B: 1.0000 GB/s = 8.0000 Gbit/s, 0.250 s of processor a GB"
    with pytest.raises(RuntimeError, match="no receiver in what the programs said"):
        pairs.figures(said, pairs.BULK)
    said += "\nreceived 8 B: 1.0000 GB/s = 8.0000 Gbit/s, 0.125 s of processor a GB"
    assert pairs.figures(said, pairs.BULK) == {"gbit": 8.0, "sender": 0.25, "receiver": 0.125}


def test_a_profile_tells_functions_of_the_kernel_from_those_of_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cpu_a_byte

    lines = [
        "     7.80%  [kernel.kallsyms]  [k] finish_task_switch.isra.0      -      -   ",
        "     2.20%  _C.so  [.] taco::harp::Session::on_packet(std::span<std::byte>, int)",
        "# Samples: 12  of event 'cpu-clock'",
    ]
    found = [match.groups() for match in map(cpu_a_byte.REPORTED.match, lines) if match]
    assert found == [
        ("7.80", "[kernel.kallsyms]", "k", "finish_task_switch.isra.0"),
        ("2.20", "_C.so", ".", "taco::harp::Session::on_packet(std::span<std::byte>, int)"),
    ]


def exchange_with_itself(kind: str, size: int) -> list[bytes]:
    """The bytes that each of two ranks is to have after a call of this kind."""
    import nccl_pair

    data = [nccl_pair.made(7, size, rank) for rank in range(2)]
    found = [nccl_pair.expected(kind, rank, data) for rank in range(2)]
    return [b"" if each is None else each.tobytes() for each in found]


def test_the_data_that_nccls_calls_are_checked_for() -> None:
    import nccl_pair

    first, second = (nccl_pair.made(7, 16, rank).tobytes() for rank in range(2))
    assert exchange_with_itself("send", 16) == [b"", first]
    assert exchange_with_itself("exchange", 16) == [second, first]
    assert exchange_with_itself("all_gather", 16) == [first[:8] + second[:8]] * 2
    assert exchange_with_itself("all_to_all", 16) == [
        first[:8] + second[:8],
        first[8:] + second[8:],
    ]
    numbers = [struct.unpack("<4i", each) for each in (first, second)]
    sums = [(a + b + (1 << 31)) % (1 << 32) - (1 << 31) for a, b in zip(*numbers, strict=True)]
    assert exchange_with_itself("all_reduce", 16) == [struct.pack("<4i", *sums)] * 2
    assert exchange_with_itself("reduce_scatter", 16) == [
        struct.pack("<2i", *sums[:2]),
        struct.pack("<2i", *sums[2:]),
    ]


def test_ranks_of_nccl_in_two_processes_go_in_step_and_share_rank_0s_value() -> None:
    import nccl_pair

    ends = socket.socketpair()
    ranks = [types.SimpleNamespace(number=number) for number in range(2)]
    rendezvous = [nccl_pair.Processes(end.detach()) for end in ends]
    steps: list[int] = []

    def go(number: int) -> object:
        for step in range(50):
            rendezvous[number].wait()
            steps.append(step)
            rendezvous[number].wait()
        return rendezvous[number].share(ranks[number], {"of": number})

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        shared = list(threads.map(go, range(2)))
    assert steps == sorted(steps)
    assert shared == [{"of": 0}] * 2
    rendezvous[0].abort()
    with pytest.raises((threading.BrokenBarrierError, OSError)):
        rendezvous[1].wait()
    rendezvous[1].abort()
