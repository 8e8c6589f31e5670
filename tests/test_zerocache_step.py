"""Benchmarks of the page store: small runs, and what is made of figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_a_limit_is_the_slowest_of_computing_and_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from zerocache_step import judge

    def stats(scale: int) -> dict[str, object]:
        moved = {"host to device": 8, "device to host": 6, "ssd to host": 4, "host to ssd": 2}
        ways = {way: {"bytes": scale * count * 10**9} for way, count in moved.items()}
        return {"ways": ways, "hits": 9 * scale, "misses": scale, "stalled_s": 0.5 * scale}

    base = {"seconds": [1.0, 1.0], "losses": [2.0], "peak": 10}
    cached = {"seconds": [2.0, 2.0], "losses": [2.002], "peak": 5}
    run = {"moved": {"upload": 6.0, "read": 4.0}, "least": {"upload": 5.0, "read": 3.0}}
    cached |= {"before": stats(0), "after": stats(2), "run": run}
    speeds = {"copy": 8e9, "read": 2.5e9, "write": 4e9}
    found = judge(cached, base, speeds)
    assert found["speed"] == 0.5
    assert found["limit_s"] == pytest.approx(4 / 2.5)  # reads; copies take 1 s, and so does torch
    assert found["hit_rate"] == pytest.approx(0.9)
    assert found["stalled_s"] == 0.5
    assert found["of_least"] == 1.25
    assert found["loss_apart"] == pytest.approx(0.001)
    assert judge(cached, base, speeds | {"read": 8e9, "copy": 2e9})["limit_s"] == 4
    assert judge(cached, base, {"copy": 1e12, "read": 1e12, "write": 1e12})["limit_s"] == 1.0


@pytest.mark.whole(because="it runs a program that measures; the tests of the cache compare losses")
def test_a_small_training_learns_the_same_in_a_cache(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARKS / "zerocache_step.py"), "--only", "half_on_disk"]
    command += ["--layers", "4", "--width", "320", "--steps", "2", "--rounds", "1"]
    command += ["--directory", str(tmp_path / "pages"), "--json", str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(result.read_text())["rows"]["half_on_disk"]
    assert row["loss_apart"] < 1e-5
    assert row["moved"]["ssd to host"] > 0
    assert not list((tmp_path / "pages").iterdir()), "it leaves nothing behind"


def test_an_unknown_row_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "zerocache_step.py"), "--only", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert "nothing: choose from" in done.stderr


@pytest.mark.whole(
    instead="tests/python/zerocache/test_zerocache_ddp.py"
    "::test_ranks_have_what_one_alone_would_have"
)
def test_ranks_that_share_a_model_learn_as_ddp(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARKS / "zerocache_sharded.py"), "--json", str(result)]
    choices = ["ZeroCache, on disk", "DDP, state in ZeroCache", "DDP, stepped in backward"]
    command += ["--only", ";".join(["DDP", *choices]), "--layers", "2", "--width", "128"]
    command += ["--page", "128KiB", "--steps", "2", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (base,), *caches = json.loads(result.read_text()).values()
    assert len(caches) == len(choices)
    for (ours,) in caches:
        assert ours["losses"] == pytest.approx(base["losses"], rel=1e-5)
        assert ours["losses"][-1] != ours["losses"][0]
    assert caches[1][0]["losses"] == caches[2][0]["losses"]


@pytest.mark.whole(because="it runs a program that measures; test_zerocache_plan has the plans")
def test_plans_of_caches_and_of_the_command_stand_beside_measured_steps(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARKS / "zerocache_plan.py"), "--json", str(result)]
    command += ["--layers", "2", "--width", "128", "--batch", "1", "--steps", "4"]
    command += ["--directory", str(tmp_path / "pages")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for whose in ("its own cache", "the command"):
        assert f"goal: by {whose} within 10%" in done.stdout
    rows = json.loads(result.read_text())
    assert len(rows) == 3
    for row in rows:
        assert row["step_s"] > 0
        assert len(row["ratios"]) == len(rows)
        assert min(*row["ratios"], row["command"]) > 0
