"""Pages that benchmarks/report.py fills: a table of each run's results, and misses of goals."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import TOP

BENCHMARKS = TOP / "benchmarks"
SPEEDS = [{"gbit": 10.0, "sender": 0.5, "receiver": 0.5}]
ENGINES = {"8 MiB, GB/s": 1.0, "64 KiB, GB/s": 1.0, "64 B, million a second": 1.0}
STRIPED = {"8 MiB, ms": 4.0, "32 MiB, ms": 16.0}
FLOOD = {
    "elsewhere": {"gbit": 10.0, "receiver": 0.5},
    "at it": {"gbit": 9.0, "receiver": 0.5},
    "rates": {"least": 9e4, "most": 1e5},
}


def bytes_rows() -> list[dict[str, Any]]:
    rows = []
    for place in ("one_core", "spread", "free"):
        for kind in ("all_reduce", "all_gather", "all_to_all"):
            for name, wall in (("gloo", 0.1), ("taco", 0.09)):
                row = {"placement": place, "collective": kind, "backend": name, "wall_s": wall}
                rows.append({**row, "worst_s": 0.1, "user_a_gb": 0.25, "kernel_a_gb": 0.5})
    return rows


def collective(kind: str, size: int, backend: str, seconds: float) -> dict[str, Any]:
    row = {"collective": kind, "bytes": size, "backend": backend, "median_s": seconds}
    return {**row, "limit_s": seconds / 2, "times_limit": 2.0, "p90_s": seconds}


def beside_gloo() -> dict[str, Any]:
    machine = {"cpu": "A processor", "tcp": "bbr", "load": 0.0}
    found: dict[str, Any] = {
        run: {
            "rows": [
                collective(kind, size, name, seconds)
                for kind in ("all_reduce", "all_gather", "all_to_all", "broadcast")
                for size in (8, 32 << 20, 40 << 20)
                for name, seconds in (("gloo", 0.2), ("taco", 0.1))
            ],
            "machine": machine,
        }
        for run in ("one_host", "four_hosts", "four_hosts_1gbit", "two_by_two_1gbit")
    }
    choice = {"seconds": 0.1, "of_gloo": 1.0, "limit_s": 0.1}
    choice |= {"host_bytes": 1.0, "host_bytes_limit": 1.0}
    choices = dict.fromkeys(("gloo", "2d_float16", "topk"), choice)
    found["scaling_all_reduce"] = {"choices": choices, "machine": machine, "left_out": {}}
    return found


def questions() -> dict[str, Any]:
    bulk = dict.fromkeys(("harp", "bare", "harp, kernel", "bare, no CRC", "TCP"), SPEEDS)
    levels = {name: {"gbit": 10.0, "sender": 0.5, "receiver": 0.5} for name in ("none", "auth")}
    levels |= {"encrypt": {"sender": 1.5, "receiver": 1.5}, "openssl": {"seconds": 1.0}}
    striped = {"rows": {"1": [STRIPED], "2": [dict.fromkeys(STRIPED, 2.0)]}}
    return {
        "bulk": {"rows": {str(1 << 20): bulk}},
        "small": {
            "harp, auth": [{"us": 12.0}],
            "harp, none": [{"us": 9.0}],
            "TCP, polling": [{"us": 10.0}],
        },
        "first_message": {"harp": [{"beyond": 200.0, "round_trip": 11e3}]},
        "engines": {"rows": {"1": [ENGINES], "2": [dict.fromkeys(ENGINES, 1.9)]}},
        "striped": striped,
        "striped_shm": striped,
        "security": levels,
        "security_forged": FLOOD,
        "security_icmp": FLOOD,
        "security_connects": FLOOD,
        "interface_events": {"rows": {"an address": [3e-4], "a link": [2e-3]}},
        "sessions": {"sessions": 10_000, "leave_s": 8e-9, "change_s": 0.1},
    }


def tables() -> dict[str, Any]:
    sharing = {
        f"20 ms {control}, {first} first": {"harp": 0.2, "tcp": 0.8, "drops": 0.0}
        for control in ("cubic", "bbr")
        for first in ("HARP", control)
    }
    incast = {"share": 1.0, "jain": 0.9, "queue_p99": 14.0, "drops": 3.0}
    sharing["20 ms incast of 16 at once"] = incast
    loss = {
        f"{name} {kind} {share:g}": [[0.5 if share == 0 else 0.55]]
        for name in ("taco", "gloo")
        for kind in ("single", "super")
        for share in (0.0, 0.01, 0.05)
    }
    drive = {f"p50_us_{size}": 9.0 for size in (8, 64, 4096, 1 << 20)}
    for name in ("gb_a_s", "cpu_s_a_gb"):
        drive |= {f"{name}_{size}": 1.0 for size in (4096, 1 << 20)}
    step = {"step_s": 1.0, "memory_s": 0.8, "limit_s": 0.9, "speed": 0.8}
    step |= {"peak": 1e9, "memory_peak": 2e9}
    steps = dict.fromkeys(("quarter_2048", "half_on_disk", "half_in_backward"), step)
    return {
        "two_links": {"times": {"all_reduce": {"1": [[0.5, 0.52]], "2": [[0.25, 0.26]]}}},
        "links": {"deaths": [{"pause_s": 0.1, "return_s": 2.5}]},
        "loss": {"times": loss},
        "cpu_a_byte": {"rows": bytes_rows(), "bare": {"sender": 0.45, "receiver": 0.45}},
        "drivers": [{"driver": "udp", "mtu": 1500, **drive}],
        "sharing": sharing,
        "zerocache_step": {"rows": steps},
        "builds": {"loss": {"commit": "abc1234", "day": "2026-01-02"}},
    }


def results() -> dict[str, Any]:
    """Results of every run that has a table, as its program writes them."""
    return beside_gloo() | questions() | tables()


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, for pages like the project's in a folder of its own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import report

    for name, page in (
        ("SUMMARY", report.SUMMARY),
        ("TABLES", report.TABLES),
        ("README", report.README),
    ):
        copy = tmp_path / page.relative_to(TOP)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(page.read_text())
        monkeypatch.setattr(report, name, copy)
    monkeypatch.setattr(report, "TOP", tmp_path)
    return report


def leave(folder: Path, found: dict[str, Any]) -> None:
    (folder / "out").mkdir()
    for name, result in found.items():
        (folder / "out" / f"{name}.json").write_text(json.dumps(result))


def rows_of(page: str, name: str) -> list[str]:
    found = re.search(f"<!-- {name} begin -->(.*)<!-- {name} end -->", page, re.DOTALL)
    assert found is not None
    return [row for row in found[1].splitlines() if row.startswith("| ")]


def test_every_table_is_made_of_its_runs(report: Any, tmp_path: Path) -> None:
    leave(tmp_path, results())
    report.main()
    page = report.SUMMARY.read_text()
    assert rows_of(page, "two_links")[-1] == (
        "| all_reduce | 510 ms (529 ms) | 255 ms (265 ms) | 2.00x | 1.9x |"
    )
    # Bold is what misses.
    assert rows_of(page, "links")[1:] == [
        "| pause | 0.10 s | 0.10 s | 1 s |",
        "| until a mended link is used again | 2.50 s | **2.50 s** | 2 s |",
    ]
    assert rows_of(page, "loss")[1] == (
        "| 1% of single datagrams | **90.9%** (90.9%, 90.9%) | 90.9% (90.9%, 90.9%) | 95% |"
    )
    questions = "\n".join(rows_of(page, "bare"))
    assert "| one session, 1 MiB: speed, of bare | 1.00 | >= 0.95 |" in questions
    assert "| `auth` **1.20**, `none` 0.90 | <= 1.0 |" in questions
    assert "beside 90-100 thousand forged packets a second" in questions
    assert "| **0.900**; 1.000 | >= 0.95; <= 1.05 |" in questions
    assert "| 300 us; **2000 us** | <= 1 ms |" in questions
    assert "| 8 ns; **100 ms** | <= 2 us; 50 ms |" in questions
    assert rows_of(page, "cpu_a_byte")[-1] == (
        "| unbound | all_to_all | 100.0 | 0.25 + 0.50 | 90.0 | 0.25 + 0.50 | 0.90 | 1.00 | 1 |"
    )
    assert rows_of(page, "sharing")[1] == (
        "| 20 ms, cubic | **0.20**, 0.80 | **0.20**, 0.80 | >= 0.25 each |"
    )
    assert rows_of(page, "page_store")[-1].endswith("| **0.80** | 0.86 | 1000 / 2000 MB |")
    assert rows_of(page, "drivers")[-1].startswith("| udp | 1500 | 9.0 |")
    assert rows_of(page, "builds")[-1] == "| 2026-01-02 | abc1234 | `loss` |"
    readme = rows_of(report.README.read_text(), "figures")
    assert "| one host, all_reduce 8 B | 200 ms | 100 ms | 2.0x | `one_host` |" in readme
    assert (
        readme[-1] == "| peak memory of that step | 2,000 MB | 1,000 MB | 2.0x | `zerocache_step` |"
    )


def test_a_table_stays_where_a_run_of_it_has_left_nothing(report: Any, tmp_path: Path) -> None:
    before, readme = report.SUMMARY.read_text(), report.README.read_text()
    found = results()
    leave(tmp_path, {name: found[name] for name in ("bulk", "links", "one_host")})
    report.main()
    after = report.SUMMARY.read_text()
    assert rows_of(after, "bare") == rows_of(before, "bare")
    assert rows_of(after, "loss") == rows_of(before, "loss")
    assert rows_of(after, "links") != rows_of(before, "links")
    assert report.README.read_text() == readme


def test_a_page_that_has_lost_its_markers_is_named(report: Any, tmp_path: Path) -> None:
    leave(tmp_path, results())
    report.SUMMARY.write_text(report.SUMMARY.read_text().replace("<!-- loss end -->", ""))
    with pytest.raises(SystemExit, match=r"benchmarks\.md has lost its markers <!-- loss begin"):
        report.main()


def test_a_run_of_another_program_is_noted_with_its_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import run_all

    monkeypatch.setattr(run_all, "OUT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--note", "kernels,sessions"])
    assert run_all.main() == 0
    builds = json.loads((tmp_path / "builds.json").read_text())
    assert {name: build["commit"] for name, build in builds.items()} == {
        "kernels": run_all.commit(),
        "sessions": run_all.commit(),
    }
