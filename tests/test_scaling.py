"""The arithmetic of benchmarks/scaling.py: layouts, buckets, limits; and that it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import choices
import emulated
import pytest
import scaling
from fabric import why_unavailable

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "scaling.py"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vgg16", 138_357_544),
        ("resnet50", 25_557_032),
        ("gpt2", 124_438_272),  # without the last normalisation
        ("bert", 109_482_240),
    ],
)
def test_layouts_have_the_parameters_of_the_models(name: str, parameters: int) -> None:
    assert sum(layer.size for layer in emulated.MODELS[name]()) == parameters


def test_transformer_xl_has_its_151_million_parameters() -> None:
    assert sum(layer.size for layer in emulated.transformer_xl()) == pytest.approx(151e6, rel=0.01)


def test_buckets_hold_all_gradients_in_backward_order() -> None:
    layers = emulated.vgg16()
    found = emulated.buckets(layers)
    assert sum(bucket.bytes for bucket in found) == 4 * sum(layer.size for layer in layers)
    assert found[0].bytes >= 1 << 20
    assert all(bucket.bytes >= 25 << 20 for bucket in found[1:-1])
    assert [bucket.ready for bucket in found] == sorted(bucket.ready for bucket in found)
    assert found[-1].ready == pytest.approx(1.0)


def test_a_step_waits_for_computation_or_for_the_wire() -> None:
    ready = [emulated.Bucket(100, 0.5), emulated.Bucket(100, 1.0)]
    assert emulated.step_limit(ready, 1.0, 2.0, 0.0) == 3.0
    # The first travels from 2.0 to 3.0, the second from 3.0 to 4.0.
    assert emulated.step_limit(ready, 1.0, 2.0, 0.01) == pytest.approx(4.0)
    # The second waits for the first, which is on its way until 5.0.
    assert emulated.step_limit(ready, 1.0, 2.0, 0.03) == pytest.approx(8.0)


def test_a_host_sends_what_the_choice_says() -> None:
    share = {name: choice.wire_share(2, 4, 0.01) for name, choice in choices.CHOICES.items()}
    assert share["gloo"] == share["ring"] == pytest.approx(1.5)
    assert share["2d"] == pytest.approx(1.0)
    assert share["2d_float16"] == pytest.approx(0.5)
    assert share["topk"] == pytest.approx(0.01 * 3.08 / 4, rel=0.01)
    assert share["auto"] is None


def test_computation_is_found_for_a_ratio_of_what_it_does_not_hide() -> None:
    ready = emulated.buckets(emulated.even())
    second_per_byte = 1e-8
    for ratio in (3.67, 1.4, 0.64):
        seconds = scaling.compute_for(ratio, ready, second_per_byte)
        forward = emulated.FORWARD * seconds
        step = emulated.step_limit(ready, forward, seconds - forward, second_per_byte)
        assert (step - seconds) / seconds == pytest.approx(ratio, rel=1e-6)


def run(tmp_path: Path, *options: str) -> dict:
    path = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), *options, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(path.read_text())


@pytest.mark.whole(instead="test_a_host_sends_what_the_choice_says")
def test_on_one_host_ways_to_cross_a_network_are_left_out_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("taco_torch", reason="the package is not installed")
    options = "--hosts 1 --ranks 2 --models resnet50 --scale 100 --emulate-compute 20"
    found = run(tmp_path, *options.split(), "--rounds", "1", "--steps", "2")
    assert set(found["models"][0]["choices"]) == {"gloo", "ring"}
    for name in ("2d", "2d_float16", "topk"):
        assert "one host" in found["left_out"][name]


@pytest.mark.whole(instead="test_a_step_waits_for_computation_or_for_the_wire")
@pytest.mark.parametrize("measure", ["models", "ratios", "all_reduce"])
def test_every_measurement_fits_between_hosts_its_limit(tmp_path: Path, measure: str) -> None:
    pytest.importorskip("taco_torch", reason="the package is not installed")
    reason = why_unavailable()
    if reason:
        pytest.skip(f"no fabric here: {reason}")
    options = "--hosts 2 --ranks 4 --models resnet50 --scale 100 --emulate-compute 30 --ratios 1"
    picture = tmp_path / "plot.png"
    rounds = ["--rounds", "1", "--steps", "2", "--plot", str(picture)]
    found = run(tmp_path, "--measure", measure, *options.split(), *rounds)
    assert picture.stat().st_size > 0
    row = found[measure][0] if measure in found else found
    assert {"gloo", "ring", "2d"} <= set(row["choices"])
    for one in row["choices"].values():
        assert one["seconds"] > 0
        if one.get("host_bytes_limit"):
            # Frames and a barrier's messages come on top.
            assert 0.98 * one["host_bytes_limit"] < one["host_bytes"]
