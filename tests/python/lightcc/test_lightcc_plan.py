"""python -m taco_torch.lightcc.plan: what it predicts, and what it says of impossible numbers."""

from __future__ import annotations

import json

import pytest
from conftest import taco_only

plan = pytest.importorskip("taco_torch.lightcc.plan", reason="the package is not installed")
pytestmark = taco_only

VGG16 = ["--gradients", "553MB", "--compute", "518ms"]
VGG16 += ["--hosts", "2", "--ranks", "8", "--gbps", "25"]


def predictions(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, float]]:
    assert plan.main([*arguments, "--json"]) == 0
    return {row["choice"]: row for row in json.loads(capsys.readouterr().out)}


def changed(option: str, value: str) -> list[str]:
    arguments = list(VGG16)
    arguments[arguments.index(option) + 1] = value
    return arguments


def test_bytes_that_leave_a_host_are_those_of_the_arithmetic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = predictions(capsys, *VGG16)
    size = 553e6
    assert found["dense, 2D"]["host_bytes"] == pytest.approx(2 * (2 - 1) / 2 * size, rel=0.01)
    assert found["2D, float16"]["host_bytes"] == pytest.approx((2 - 1) / 2 * size, rel=0.01)
    elements = 0.01 * size / 4
    topk = found["TopK 1%, float32 values"]["host_bytes"]
    assert 5 * elements < topk < 6.5 * elements  # a value, and a byte or little more for its place
    halved = predictions(capsys, *VGG16, "--values", "float16")["TopK 1%, float16 values"]
    assert 3 * elements < halved["host_bytes"] < 4.5 * elements


def test_what_is_sent_less_is_exposed_less(capsys: pytest.CaptureFixture[str]) -> None:
    found = predictions(capsys, *changed("--gbps", "5"), "--backward", "0")
    auto = found["auto"]
    rows = [row for name, row in found.items() if name != "auto"]
    assert len(rows) == 4
    exposed = [row["exposed_s"] for row in rows]
    assert auto["step_s"] <= 1.01 * min(row["step_s"] for row in rows)
    assert exposed == sorted(exposed, reverse=True)
    for row in rows:
        assert row["step_s"] == pytest.approx(0.518 + row["exposed_s"])
        assert row["exposed_s"] == pytest.approx(row["communication_s"])
        assert row["scaling"] == pytest.approx(0.518 / row["step_s"])


def test_the_backward_pass_hides_what_is_ready_early(capsys: pytest.CaptureFixture[str]) -> None:
    shown = predictions(capsys, *VGG16)
    bare = predictions(capsys, *VGG16, "--backward", "0")
    for name, row in shown.items():
        if name == "auto":
            continue  # what it chooses depends on what is hidden
        assert row["communication_s"] == pytest.approx(bare[name]["communication_s"])
        assert 0 < row["exposed_s"] < bare[name]["exposed_s"]


def test_auto_compresses_nothing_that_hides(capsys: pytest.CaptureFixture[str]) -> None:
    found = predictions(capsys, *changed("--compute", "60s"))
    assert (
        found["auto"]["algorithm"]
        == f"{len(plan.Job(553_000_000, 60, 2, 8, 25).buckets())} float32"
    )
    assert found["auto"]["step_s"] <= 1.01 * found["dense, 2D"]["step_s"]
    shown = predictions(capsys, *changed("--gbps", "5"))["auto"]
    assert "float16" in shown["algorithm"] or "topk" in shown["algorithm"]


def test_on_one_host_there_is_nothing_to_compress(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(changed("--hosts", "1")) == 0
    shown = capsys.readouterr().out
    assert "nothing to compress" in shown
    assert "float16" not in shown.split("nothing to compress")[0]


def test_the_table_names_each_choice_and_where_its_costs_are_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan.main(VGG16) == 0
    shown = capsys.readouterr().out
    for text in ("2 hosts with 8 ranks each at 25 Gbit/s", "553.0 MB", "dense, 2D", "table 0x"):
        assert text in shown


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--gradients", "553", "'553' is not a number with a unit: write it like 553MB"),
        ("--gradients", "553Mb", "units: B, kB, MB, GB, KiB, MiB, GiB"),
        ("--gradients", "-5MB", "'-5MB' is not a number with a unit"),
        ("--gradients", "3B", "less than one float32"),
        ("--compute", "518", "write it like 518ms"),
        ("--compute", "0ms", "it must take some time"),
        ("--hosts", "0", "0 hosts: there must be one at least"),
        ("--ranks", "0", "0 ranks on a host"),
        ("--ranks", "4097", "2 hosts with 4097 ranks each: a job of more than 8192 ranks"),
        ("--gradients", "2700GB", "buckets of 26214400 bytes: more than 100000 take too long"),
        ("--gbps", "0", "0 Gbit/s: it must be above 0"),
        ("--gbps", "nan", "it must be above 0"),
        ("--gbps", "fast", "invalid float value: 'fast'"),
    ],
)
def test_a_bad_number_is_named(
    capsys: pytest.CaptureFixture[str], option: str, value: str, said: str
) -> None:
    arguments = [f"{option}={value}", *changed(option, "x")]
    at = arguments.index(option)
    del arguments[at : at + 2]
    with pytest.raises(SystemExit) as left:
        plan.main(arguments)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--ratio=0", "ratio 0: it must be above 0 and at most 1"),
        ("--ratio=1.5", "ratio 1.5"),
        ("--ratio=nan", "ratio nan"),
        ("--backward=2", "it is a share"),
        ("--bucket=2B", "less than one float32"),
    ],
)
def test_a_bad_option_is_named(capsys: pytest.CaptureFixture[str], option: str, said: str) -> None:
    with pytest.raises(SystemExit):
        plan.main([*VGG16, option])
    assert said in capsys.readouterr().err


def test_buckets_are_ddps() -> None:
    job = plan.Job(gradients=60 << 20, compute_s=1.0, hosts=2, ranks=1, gbps=1.0)
    assert job.buckets() == [1 << 20, 25 << 20, 25 << 20, 9 << 20]
    assert sum(job.buckets()) == 60 << 20
