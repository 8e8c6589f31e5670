"""A cache's views of itself: its report, a picture of a step, a plan, bars and timeline rows."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import taco_only
from zerocache_models import PAGE, TinyGPT, adamw, make_cache, state_bytes, train

pytestmark = taco_only

DEVICE, HOST = 12, 16


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Any]:
    """One that has not seen a step."""
    with make_cache(tmp_path, DEVICE, HOST) as made:
        yield made


def run_steps(cache: Any, steps: int) -> None:
    model = TinyGPT()
    model, optimizer = cache.wrap(model, adamw(model))
    train(model, optimizer, steps)


def test_the_report_shows_what_moves_beside_the_least_possible(cache: Any) -> None:
    run_steps(cache, 6)
    from taco_torch import _C

    step = _C.zerocache.last_run(cache.store, "train")
    assert step["number"] == 6
    assert step["steady_runs"] == 4
    # All but what memory holds is written in every step and read again.
    beyond = state_bytes(TinyGPT()) - (DEVICE + HOST) * PAGE
    for way in ("ssd to host", "host to ssd"):
        assert step["least"][way] >= 0.9 * beyond
        assert step["moved"][way] >= step["least"][way] - PAGE
    text = cache.report()
    assert "least possible" in text
    assert text.count("x\n") >= 2


def test_without_a_training_step_there_is_no_least(cache: Any) -> None:
    assert "least possible" not in cache.report()


def test_a_plan_of_the_same_memory_moves_what_was_moved(cache: Any) -> None:
    run_steps(cache, 6)
    from taco_torch import _C

    step = _C.zerocache.last_run(cache.store, "train")
    plan = cache.plan()
    assert plan.measured_s == step["seconds"]
    assert plan.compute_s <= plan.step_s
    for way in ("ssd to host", "host to ssd"):
        assert plan.moved[way] == pytest.approx(step["moved"][way], rel=0.3)
        assert plan.moved[way] >= plan.least[way] - PAGE
    assert "a step takes" in str(plan)
    assert "measured" in str(plan)


def test_a_plan_with_more_memory_needs_no_disk(cache: Any) -> None:
    run_steps(cache, 3)
    plan = cache.plan(device=400 * PAGE, host="64MiB", ssd=0)
    assert plan.moved["ssd to host"] == plan.moved["host to ssd"] == 0
    assert plan.waiting_s == 0
    assert plan.hit_rate == 1


def test_a_plan_that_does_not_fit_says_what_has_to_be_larger(cache: Any) -> None:
    run_steps(cache, 2)
    with pytest.raises(ValueError, match="device memory holds 1 page "):
        cache.plan(device=PAGE)
    with pytest.raises(ValueError, match="the sum of memory and disk holds 28 pages"):
        cache.plan(ssd=0)
    with pytest.raises(ValueError, match="device='much' is no size"):
        cache.plan(device="much")


def test_a_plan_needs_two_steps_and_a_picture_one(cache: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="train two steps first"):
        cache.plan()
    with pytest.raises(RuntimeError, match="no training step has ended"):
        cache.plot(tmp_path / "residency.png")
    run_steps(cache, 1)
    with pytest.raises(RuntimeError, match="train two steps first"):
        cache.plan()
    cache.plot(tmp_path / "residency.png")


def test_residency_is_known_by_tier_and_kind_all_over_the_step(cache: Any) -> None:
    run_steps(cache, 4)
    from taco_torch import _C

    found = _C.zerocache.residency_over_run(cache.store, "train", 50)
    assert found["number"] == 4
    caps = {"device": DEVICE * PAGE, "host": HOST * PAGE}
    for tier, cap in caps.items():
        kinds = found["residency"][tier]
        together = [sum(now) for now in zip(*kinds.values(), strict=True)]
        assert len(together) == 50
        assert 0 < max(together) <= cap
    assert max(found["residency"]["host"]["exp_avg"]) > 0
    assert max(found["residency"]["device"]["exp_avg"]) == 0, "state is stepped in host memory"
    assert max(found["residency"]["device"]["parameters"]) > 0
    names = [name for name, _, _ in found["phases"]]
    assert names == ["forward", "backward", "step"]
    ends = [end for _, _, end in found["phases"]]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(found["seconds"])


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_of_a_step_has_every_tier(cache: Any, tmp_path: Path, ending: str) -> None:
    run_steps(cache, 3)
    path = tmp_path / f"residency.{ending}"
    cache.plot(path)
    if ending == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000
    else:
        # matplotlib writes the text of its letters beside their outlines.
        text = path.read_text()
        for label in ("host memory", "disk", "parameters", "exp_avg_sq"):
            assert f"<!-- {label} -->" in text
        # The phases that are long enough for their names.
        assert any(f"<!-- {name} -->" in text for name in ("forward", "backward", "step"))


def test_without_matplotlib_the_picture_says_what_it_needs(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_steps(cache, 1)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        cache.plot(tmp_path / "residency.png")


class Terminal(io.StringIO):
    """A terminal that a bar is drawn on; tells when it shows half."""

    def __init__(self) -> None:
        super().__init__()
        self.half = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if " 50%" in text:
            self.half.set()
        return super().write(text)


def test_a_bar_shows_how_far_a_save_is_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from taco_torch.zerocache.progress import shown

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown("saving somewhere", lambda: (512, 1024)):
        assert terminal.half.wait(60)
    assert "saving somewhere" in terminal.getvalue()


class Silent:
    """As a program's logger may stand in for stderr: it only takes text."""

    def write(self, text: str) -> int:
        return len(text)


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Silent(), closed()], ids=["none", "logger", "closed"])
def test_saves_go_on_whatever_stands_for_stderr(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    run_steps(cache, 1)
    monkeypatch.setattr(sys, "stderr", stream)
    cache.save(tmp_path / "saved")
    cache.load(tmp_path / "saved")


def test_a_bar_that_cannot_be_drawn_ends_no_save(monkeypatch: pytest.MonkeyPatch) -> None:
    from taco_torch.zerocache.progress import shown

    class Broken(Terminal):
        def write(self, text: str) -> int:
            self.half.set()
            raise ValueError("I/O operation on closed file")

    terminal = Broken()
    unraised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", unraised.append)
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown("saving somewhere", lambda: (512, 1024)):
        assert terminal.half.wait(60)
    assert unraised == []


def test_elsewhere_there_is_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    from taco_torch.zerocache.progress import shown

    before = threading.active_count()
    with shown("saving somewhere", lambda: (512, 1024)):
        assert threading.active_count() == before
    assert capfd.readouterr().err == ""


def test_save_and_load_tell_how_far_they_are(
    cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    from taco_torch.zerocache import cache as module

    seen: list[tuple[str, tuple[int, int]]] = []

    @contextmanager
    def watched(what: str, progress: Any) -> Iterator[None]:
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                seen.append((what, progress()))

        thread = threading.Thread(target=look)
        thread.start()
        yield
        over.set()
        thread.join()
        assert progress() == (0, 0)

    monkeypatch.setattr(module, "shown", watched)
    run_steps(cache, 1)
    size = state_bytes(TinyGPT())
    calls = {"saving": cache.save, "loading": cache.load}
    for verb, call in calls.items():
        states: list[tuple[int, int]] = []
        for _ in range(100):  # whoever looks may sleep all the while
            call(tmp_path / "saved")
            states = [now for what, now in seen if what.startswith(verb) and now[1] > 0]
            if any(done > 0 for done, _ in states):
                break
        assert any(done > 0 for done, _ in states), f"nothing was seen of {verb}"
        assert all(0 <= done <= all_of_it for done, all_of_it in states)
        assert all(size <= all_of_it <= 1.2 * size + 8 * PAGE for _, all_of_it in states)


def test_every_stream_has_a_row_in_the_timeline(cache: Any, tmp_path: Path) -> None:
    import taco_torch

    path = tmp_path / "trace.json"
    with taco_torch.timeline(path):
        run_steps(cache, 3)
    events = json.loads(path.read_text())["traceEvents"]
    rows = {event["tid"] for event in events}
    assert rows >= {
        "model, forward",
        "model, backward",
        "optimizer",
        "waits for pages",
        "pages, host to device",
        "pages, device to host",
        "pages, ssd to host",
        "pages, host to ssd",
    }
    shown = " ".join(event["name"] for event in events if event["tid"].startswith("model"))
    assert "blocks.3.up.weight" in shown
    assert all(event["dur"] >= 0 for event in events)
