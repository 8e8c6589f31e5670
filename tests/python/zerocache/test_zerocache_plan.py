"""python -m taco_torch.zerocache.plan: whether a model fits, and what a step of it takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import taco_only

pytestmark = taco_only

SMALL = ["--params", "30e6", "--tokens", "512", "--flops", "1e12", "--page", "1MiB"]
SMALL += ["--vocabulary", "512", "--context", "128"]
CAPS = ["--device", "32MiB", "--host", "64MiB", "--ssd", "1GiB"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    from taco_torch.zerocache import plan

    assert plan.main([*SMALL, *arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_predicts_a_step_and_the_least_host_memory() -> None:
    command = [sys.executable, "-m", "taco_torch.zerocache.plan", *SMALL, *CAPS, "--fit"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for text in ("a step takes", "ssd to host", "the least host memory: ", "within 5% of"):
        assert text in done.stdout, done.stdout
    assert done.stderr == ""


def test_a_slower_disk_or_less_memory_make_a_step_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = planned(capsys, *CAPS, "--disk-gbs", "2")
    slower = planned(capsys, *CAPS, "--disk-gbs", "0.5")
    roomy = planned(capsys, "--device", "32MiB", "--host", "1GiB")
    assert slower["step_s"] > 2 * found["step_s"] > 2 * roomy["step_s"]
    assert found["moved"]["ssd to host"] >= found["least"]["ssd to host"] > 0
    assert roomy["moved"]["ssd to host"] == 0


def test_a_disk_that_reads_and_writes_at_once_takes_less(
    capsys: pytest.CaptureFixture[str],
) -> None:
    speeds = ["--disk-gbs", "0.5", "--disk-write-gbs", "0.5"]
    in_turns = planned(capsys, *CAPS, *speeds)
    at_once = planned(capsys, *CAPS, *speeds, "--disk-duplex")
    moved = in_turns["moved"]
    disk = (moved["ssd to host"] + moved["host to ssd"]) / 0.5e9
    assert in_turns["step_s"] - in_turns["compute_s"] > 0.8 * (disk - in_turns["compute_s"])
    assert at_once["step_s"] < 0.8 * in_turns["step_s"]


def test_a_step_that_waits_for_nothing_takes_what_it_computes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = planned(capsys, "--device", "1GiB", "--host", "1GiB")
    assert found["step_s"] == found["compute_s"]
    # Six operations for each parameter and token, and 28 bytes of it for AdamW.
    expected = 6 * 30e6 * 512 / 1e12 + 28 * 30e6 / 40e9
    assert found["compute_s"] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("layers", [None, 4, 24])
@pytest.mark.parametrize("parameters", [2e6, 25e6, 7e9, 175e9])
def test_the_shape_has_about_as_many_parameters_as_were_asked_for(
    parameters: float, layers: int | None
) -> None:
    from taco_torch.zerocache.plan import Shape, shape_for

    shape = shape_for(parameters, layers, 512, 512)
    assert layers is None or shape.layers == layers
    closer = [Shape(shape.layers, shape.width + by, 512, 512).parameters() for by in (-64, 64)]
    assert all(abs(other - parameters) >= abs(shape.parameters() - parameters) for other in closer)
    if parameters > 1e9:
        assert shape.parameters() == pytest.approx(parameters, rel=0.1)


def test_bfloat16_and_other_optimizers_hold_what_they_hold() -> None:
    from taco_torch import _C

    page = 1 << 20
    tensors, modules = [(8 * page, 4)], [([0], 0.1, 0.1)]

    def held(tensors: list[tuple[int, int]], kinds: list[str]) -> int:
        program = _C.zerocache.program_of_model(tensors, modules, kinds, 1e9, page)
        return int(program.held_bytes)

    assert held(tensors, ["exp_avg", "exp_avg_sq"]) == 24 * page
    assert held(tensors, ["momentum_buffer"]) == 16 * page
    assert held([(4 * page, 2)], ["exp_avg"]) == (4 + 8 + 8) * page


def test_what_does_not_fit_says_what_has_to_be_larger(capsys: pytest.CaptureFixture[str]) -> None:
    from taco_torch.zerocache import plan

    assert plan.main([*SMALL, "--device", "32MiB", "--host", "64MiB"]) == 1
    assert "the sum of memory and disk holds 96 pages" in capsys.readouterr().err
    assert plan.main([*SMALL, "--device", "1MiB", "--host", "1GiB"]) == 1
    assert "device memory holds 1 page " in capsys.readouterr().err
    # And what would help, where host memory does.
    assert plan.main([*SMALL, "--device", "32MiB", "--host", "64MiB", "--fit"]) == 1
    assert "the least host memory: 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--params", "seven"], "argument --params: 'seven' is no number above 10000"),
        (["--params", "-1"], "'-1' is no number"),
        (["--params", "1e30"], "'1e30' is no number above 10000, up to 1e+13"),
        (["--device", "24"], None),
        (["--device", "much"], "--device='much' is no size"),
        (["--ssd", "/data:5GiB"], "--ssd='/data:5GiB' is no size"),
        (["--device-gbs", "0"], "'0' is no number above 0"),
        (["--layers", "0"], "'0' is no whole number"),
        (["--layers", "1000000"], "'1000000' is no whole number from 1 to 10000"),
        (["--within", "1"], "'1' is no number above 1"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
    ],
)
def test_bad_input_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str | None
) -> None:
    from taco_torch.zerocache import plan

    if text is None:  # bytes: too few, but a size
        assert plan.main([*SMALL, *CAPS, *arguments]) == 1
        return
    with pytest.raises(SystemExit) as ended:
        plan.main([*SMALL, *CAPS, *arguments])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_pages_that_would_take_too_long_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    from taco_torch.zerocache import plan

    assert plan.main(["--params", "1e13", *CAPS]) == 1
    assert "pages are too many to plan with: give a larger --page" in capsys.readouterr().err


def test_a_page_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    from taco_torch.zerocache import plan

    assert plan.main([*SMALL, *CAPS, "--page", "3MiB"]) == 1
    assert "plan: " in capsys.readouterr().err
