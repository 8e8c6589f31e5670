"""The examples and benchmarks that the README shows do what it says, over taco."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fabric import why_unavailable
from torchrun import run_forked
from warm_python import WarmProcess, WarmPython

TOP = Path(__file__).parents[1]
BACKEND = os.environ.get("EXAMPLES_BACKEND", "taco")
if BACKEND == "taco":
    pytest.importorskip("taco_torch", reason="the package is not installed")


def run(*command: str, timeout: float = 300) -> str:
    """Standard output of a command that must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def torchrun(ranks: int, script: str, *arguments: str) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", str(ranks), str(TOP / "examples" / script)]
    return run(*command, "--backend", BACKEND, *arguments)


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    """For the ranks of all but a few runs, which show that the examples start by themselves."""
    modules = ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"]
    modules += ["sklearn.datasets", "tqdm"]
    with WarmPython(modules, {"OMP_NUM_THREADS": "1"}) as made:
        yield made


def forked(python: WarmPython, ranks: int, script: str, *arguments: str) -> str:
    """As torchrun(), without a launcher."""
    program = [str(TOP / "examples" / script), "--backend", BACKEND, *arguments]
    done = run_forked(python, program, ranks, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


COUNT_THREADS = """
import contextlib, os, sys, train_digits
status = train_digits.main()
names = []
for task in os.listdir("/proc/self/task"):
    with contextlib.suppress(OSError):  # it has ended meanwhile
        names.append(open(f"/proc/self/task/{task}/comm").read())
sys.stdout.write(f"threads of gloo: {sum('gloo' in name for name in names)}\\n")
sys.exit(status)
"""


@pytest.mark.whole(because="the threads that it counts are gloo's")
def test_no_thread_of_the_baseline_outlives_its_group(python: WarmPython, tmp_path: Path) -> None:
    """One that does may abort the process at its exit, after the result."""
    script = tmp_path / "count_threads.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(TOP / 'examples')!r})\n{COUNT_THREADS}")
    done = run_forked(python, [script, "--backend=gloo", "--epochs=1"], 2, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("threads of gloo: 0") == 2, done.stdout


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOP / "examples"))
    return importlib.import_module("demo")


def ended_run(result: dict[str, Any], status: int) -> Callable[..., Any]:
    """In place of subprocess.run: a training that left this result, said something and ended so."""

    def run_training(command: list[str], stderr: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--json") + 1]).write_text(json.dumps(result))
        stderr.write("what gloo says\n")
        return subprocess.CompletedProcess(command, status)

    return run_training


def pair(transport: str, factors: list[float], **flaw: Any) -> dict[str, Any]:
    """A result where taco's steps are faster by these factors than gloo's 10 ms, turn by turn."""

    def backend(steps: list[float]) -> dict[str, Any]:
        turns = [{"step_ms": step, "communication_ms": step / 2} for step in steps]
        return {"accuracy": 0.99, "replicas_identical": True, "turns": turns}

    backends = {
        "gloo": backend([10.0 for _ in factors]),
        "taco": {**backend([10 / factor for factor in factors]), **flaw},
    }
    title = "shared memory" if transport == "shm" else "HARP over UDP"
    made = {"title": title, "transport": transport, "world": 2, "parameters": 1_126_410}
    sent = {"steps": 8, "taco_bytes": 8 * 4 * 1_126_410}
    return {**made, **sent, "batch": 16, "turn_steps": 4, "backends": backends}


def test_the_demo_stops_where_a_run_fails_and_shows_the_end_of_its_log(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "LOG", tmp_path / "demo.log")
    arguments = argparse.Namespace(ranks=2, epochs=1)
    monkeypatch.setattr(demo.subprocess, "run", ended_run({"world": 2}, 0))
    assert demo.train("shared memory", "shm", arguments)["world"] == 2
    monkeypatch.setattr(demo.subprocess, "run", ended_run({"world": 2}, 134))
    with pytest.raises(SystemExit, match="over shared memory failed with status 134") as stopped:
        demo.train("shared memory", "shm", arguments)
    assert "what gloo says" in str(stopped.value)


@pytest.mark.parametrize("flaw", [{"accuracy": 0.5}, {"replicas_identical": False}])
def test_the_demo_fails_when_a_result_is_wrong(demo: ModuleType, flaw: dict[str, Any]) -> None:
    assert demo.remarks([pair("shm", [1.5, 2.0])]) == ([], True)
    notes, good = demo.remarks([pair("shm", [1.5, 2.0], **flaw)])
    assert len(notes) == 1
    assert "shared memory" in notes[0]
    assert not good


def test_the_demo_fails_where_gradients_went_another_way_than_it_says(demo: ModuleType) -> None:
    notes, good = demo.remarks([{**pair("shm", [1.5, 2.0]), "taco_bytes": 0}])
    assert ["not all gradients went over taco" in note for note in notes] == [True]
    assert not good


def test_the_demos_ratio_is_the_median_of_paired_turns_with_its_middle_half(
    demo: ModuleType,
) -> None:
    result = pair("shm", [1.0, 1.2, 1.5, 1.7, 9.0])
    # A slow moment takes both turns of its pair.
    for backend in result["backends"].values():
        backend["turns"][1]["step_ms"] *= 7
    assert demo.ratios(result, "step_ms") == pytest.approx((1.2, 1.5, 1.7))
    console = demo.Console(width=80)
    with console.capture() as shown:
        console.print(demo.table([result]))
    assert re.search(r"taco, shared memory .* 99.0% .* 1\.50x [^\n]*1\.20-1\.70", shown.get())
    assert "1.1 M parameters" in demo.workload(result)
    assert "4.5 MB of gradients" in demo.workload(result)


def assert_fits_a_screen(shown: str, lines_around: int) -> None:
    """A terminal of 80 columns and 24 lines shows it with so many other lines; nothing is wrapped
    or cut."""
    lines = shown.splitlines()
    assert max(map(len, lines)) < 80, shown
    assert len(lines) + lines_around <= 24, shown
    assert "…" not in shown


@pytest.mark.parametrize("factors", [[0.07, 0.08, 0.09], [77.777, 88.888, 99.994]])
def test_the_demos_result_fits_a_screen(
    demo: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    factors: list[float],
) -> None:
    """With the longest figures, and every note of a run that went well."""
    monkeypatch.setattr(demo, "plot", lambda results, path: None)
    results = [pair(transport, factors * 99, accuracy=1.0) for _, transport in demo.RUNS]
    for result in results:
        for backend in result["backends"].values():
            for turn in backend["turns"]:
                turn["step_ms"] *= 90 if factors[0] > 1 else 8
                turn["communication_ms"] = turn["step_ms"]
    assert demo.show(results, demo.Console(width=80))
    shown = capsys.readouterr().out
    # A line while each transport is tried, and the prompt.
    assert_fits_a_screen(shown, lines_around=len(demo.RUNS) + 1)
    for said in ("100%", "communication", "make demo-lightcc", "make demo-zerocache"):
        assert said in shown
    assert ("different hosts" in shown) == (factors[0] < 1)


def test_the_demo_says_what_harp_is_for_where_it_loses(demo: ModuleType) -> None:
    slow, good = demo.remarks([pair("udp", [0.7, 0.8])])
    assert ["different hosts" in note for note in slow] == [True]
    assert good
    slow, good = demo.remarks([pair("shm", [0.7, 0.8])])
    assert ["when it is idle" in note for note in slow] == [True]
    assert good
    assert demo.remarks([pair("udp", [1.1, 1.2])]) == ([], True)


@pytest.mark.parametrize("words", [["--ranks", "1"], ["--epochs", "0"]])
def test_the_demo_refuses_arguments_by_name(
    demo: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.parse(words)
    assert " ".join(words) in capsys.readouterr().err


def test_gloo_and_taco_learn_the_same_in_turns(python: WarmPython, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    program = [TOP / "examples" / "paired_training.py", "--epochs=3", f"--json={path}"]
    backends = ["--backends", "gloo", BACKEND]
    done = run_forked(python, [*program, *backends], 2, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(path.read_text())
    assert all(found["replicas_identical"] for found in result["backends"].values())
    # Two addends have one sum, whoever adds them.
    assert len({found["accuracy"] for found in result["backends"].values()}) == 1
    counts = {len(found["turns"]) for found in result["backends"].values()}
    assert counts == {31}
    if BACKEND == "taco":
        assert result["taco_bytes"] >= 4 * result["parameters"] * result["steps"]


@pytest.fixture
def lightcc_demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOP / "examples"))
    return importlib.import_module("demo_lightcc")


def fork_ranks(demo: ModuleType, python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the demo's ranks are forked."""

    def popen(command: list[str], env: dict[str, str]) -> WarmProcess:
        assert command[0] == sys.executable
        return python.popen(command[1:], env)

    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(Popen=popen))


HOSTS_DENSE = {"title": "gloo", "exit_status": 0, "accuracy": 0.98, "replicas_identical": True}


@pytest.mark.parametrize("flaw", [{"accuracy": 0.95}, {"replicas_identical": False}])
def test_the_demo_of_compression_fails_when_a_result_is_wrong(
    lightcc_demo: ModuleType, flaw: dict[str, Any]
) -> None:
    arguments = argparse.Namespace(rate="100mbit")
    assert lightcc_demo.remarks([HOSTS_DENSE, HOSTS_DENSE], arguments) == ([], True)
    notes, good = lightcc_demo.remarks([HOSTS_DENSE, {**HOSTS_DENSE, **flaw}], arguments)
    assert len(notes) == 1
    assert not good


def test_without_hosts_the_demo_of_compression_says_what_it_cannot_show(
    lightcc_demo: ModuleType,
) -> None:
    arguments = argparse.Namespace(rate=None)
    notes, good = lightcc_demo.remarks([HOSTS_DENSE], arguments)
    assert good
    assert ["times are not" in note for note in notes] == [True]


def test_the_demo_of_compression_says_by_how_many_images_topk_differs(
    lightcc_demo: ModuleType,
) -> None:
    dense = {"title": "gloo", "right": [356, 355, 357], "test_images": 360}
    worse = {"title": "taco, TopK", "right": [355, 355, 358], "test_images": 360}
    assert lightcc_demo.images_apart(dense, {**worse, "right": [350, 355, 358]}) == (
        "Over 3 seeds taco, TopK gets 1063 of 1080 test images right,\n"
        "gloo 1068: 5 fewer (by seed: -6, 0, +1)."
    )
    assert "gloo 1068: as many" in lightcc_demo.images_apart(dense, worse)


@pytest.mark.parametrize("rate", ["100mbit", None])
def test_the_result_of_the_demo_of_compression_fits_a_screen(
    lightcc_demo: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rate: str | None,
) -> None:
    monkeypatch.setattr(lightcc_demo, "plot", lambda results, path: None)
    results = [
        {**HOSTS_DENSE, "title": title, "compress": compression, "world": 4, "accuracy": 1.0}
        for title, _, compression in lightcc_demo.RUNS
    ]
    for result in results:
        result |= {"step_ms": 9999.9, "host_bytes_per_step": 99_999e3}
    counts = {"test_images": 360, "right": [360] * 5}
    seeded = [{**counts, "title": "gloo"}, {**counts, "title": "taco, TopK", "right": [250] * 5}]
    arguments = argparse.Namespace(rate=rate, ratio=0.01)
    assert lightcc_demo.show(results, seeded, arguments, lightcc_demo.Console(width=80))
    shown = capsys.readouterr().out
    assert "(by seed: -110, -110" in shown
    assert_fits_a_screen(shown, lines_around=1)


def test_the_demo_of_compression_refuses_a_single_seed(
    lightcc_demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        lightcc_demo.parse(["--seeds", "1"])
    assert "--seeds 1" in capsys.readouterr().err


SHOW_PLACE = """
import os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TACO_HOST_ID"]
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
sys.exit(int(sys.argv[1]) if os.environ["RANK"] == "3" else 0)
"""


@pytest.mark.parametrize("status", [0, 5])
def test_the_demo_starts_ranks_that_take_themselves_for_two_hosts(
    lightcc_demo: ModuleType, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    """The others fork them, by fork_ranks()."""
    command = [sys.executable, "-S", "-c", SHOW_PLACE, str(status)]
    assert lightcc_demo.train_on_this_host(command) == status
    if status == 0:
        hosts = ["demo-host-0", "demo-host-0", "demo-host-1", "demo-host-1"]
        assert sorted(capfd.readouterr().out.splitlines()) == [
            f"{rank} 4 {rank % 2} 2 {rank // 2} {hosts[rank]}" for rank in range(4)
        ]


@pytest.mark.whole(because="three trainings; tests of lightcc compare bytes and replicas")
def test_compressed_digits_send_less_and_replicas_stay_identical(
    lightcc_demo: ModuleType,
    python: WarmPython,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if BACKEND != "taco":
        pytest.skip("compression is taco's")
    fork_ranks(lightcc_demo, python, monkeypatch)
    sent = {}
    for compression in ("none", "float16", "topk"):
        path = tmp_path / f"{compression}.json"
        arguments = argparse.Namespace(ratio=0.01, warm_up=0, epochs=1, batch=32)
        command = lightcc_demo.command_of("taco", compression, arguments)
        command += ["--json", str(path), "--seeds", "2" if compression == "topk" else "1"]
        assert lightcc_demo.train_on_this_host(command) == 0
        result = json.loads(path.read_text())
        assert result["replicas_identical"]
        assert len(result["right"]) == (2 if compression == "topk" else 1)
        sent[compression] = result["host_bytes_per_step"]
    assert 0.4 < sent["float16"] / sent["none"] < 0.6
    assert sent["topk"] < 0.05 * sent["none"]


def losses(output: str) -> tuple[float, float]:
    """Held-out loss before and after a run of train_char_lm.py."""
    match = re.search(r"held-out loss ([0-9.]+) -> ([0-9.]+)", output)
    assert match, output
    return float(match[1]), float(match[2])


@pytest.mark.whole(instead="test_gloo_and_taco_learn_the_same_in_turns")
def test_digits_are_learnt_and_replicas_stay_identical(tmp_path: Path) -> None:
    torchrun(2, "train_digits.py", "--json", str(tmp_path / "result.json"))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["accuracy"] >= 0.97
    assert result["replicas_identical"]
    assert 0 < result["communication_share"] < 1


@pytest.mark.whole(
    instead="tests/python/test_torchrun.py::test_a_dead_rank_restarts_the_job_from_its_checkpoint"
)
def test_a_checkpoint_of_two_ranks_resumes_on_three(python: WarmPython, tmp_path: Path) -> None:
    options = ["--checkpoint", str(tmp_path / "checkpoint"), "--steps"]
    first = forked(python, 2, "train_char_lm.py", *options, "12")
    second = torchrun(3, "train_char_lm.py", *options, "6", "--resume")
    assert losses(first)[1] < losses(first)[0] - 1
    # It goes on where it was, not from the start; each world holds out its own part of the text.
    assert "resumed at step 12" in second
    assert losses(second)[0] < losses(first)[1] + 0.3


@pytest.mark.whole(
    instead="tests/python/lightcc/test_lightcc_fsdp.py::test_topk_learns_between_replicas"
)
@pytest.mark.parametrize(
    ("parallel", "compression", "said"),
    [
        ("fsdp2", "topk", "shards go between hosts as float32, those of replicas as TopK 1%"),
        ("fsdp2", "float16", "shards go between hosts as float16, those of replicas as float16"),
        ("ddp", "topk", "gradients go between hosts as TopK 1%"),
    ],
)
def test_characters_are_learnt_from_compressed_gradients(
    lightcc_demo: ModuleType,
    python: WarmPython,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    parallel: str,
    compression: str,
    said: str,
) -> None:
    if BACKEND != "taco":
        pytest.skip("compression is taco's")
    monkeypatch.setenv("TACO_LOG", "info")
    fork_ranks(lightcc_demo, python, monkeypatch)
    command = [sys.executable, str(TOP / "examples" / "train_char_lm.py"), "--backend", "taco"]
    command += ["--parallel", parallel, "--compress", compression]
    command += ["--steps", "6", "--checkpoint", str(tmp_path)]
    assert lightcc_demo.train_on_this_host(command) == 0
    out, err = capfd.readouterr()
    assert losses(out)[1] < losses(out)[0]
    assert said in err


@pytest.mark.whole(because="it runs a program that measures")
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_collectives_benchmark_measures_both_backends(hosts: int, tmp_path: Path) -> None:
    reason = why_unavailable()
    if hosts > 1 and reason:
        pytest.skip(f"no fabric here: {reason}")
    script = str(TOP / "benchmarks" / "collectives.py")
    options = f"--hosts {hosts} --ranks 2 --rounds 1 --sizes 8,1M --backends gloo,{BACKEND}"
    path = tmp_path / "result.json"
    chosen = ["--collective", "all_reduce,all_to_all", "--json", str(path)]
    run(sys.executable, script, *options.split(), *chosen)
    rows = json.loads(path.read_text())["rows"]
    assert {row["backend"] for row in rows} == {"gloo", BACKEND}
    assert all(row["median_s"] > 0 for row in rows)
    assert all((row["limit_s"] is not None) == (row["bytes"] >= 1 << 20) for row in rows)


@pytest.mark.whole(
    instead="tests/python/zerocache/test_zerocache_memory.py"
    "::test_the_peak_is_caps_gradients_and_little_else"
)
def test_a_gpt_larger_than_its_memory_is_trained_and_its_last_step_drawn(tmp_path: Path) -> None:
    if BACKEND != "taco":
        pytest.skip("the cache is taco's")
    script = str(TOP / "examples" / "train_large_lm.py")
    caps = ["--device", "1MiB", "--host", "1MiB", "--page", "64KiB", "--ssd", f"{tmp_path}/c:64MiB"]
    size = ["--layers", "2", "--width", "128", "--context", "32", "--batch", "4", "--steps", "4"]
    picture = tmp_path / "pictures" / "residency.png"
    shown = run(sys.executable, script, *caps, *size, "--plot", str(picture))
    assert "least possible" in shown
    assert "ssd to host" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def zerocache_demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOP / "examples"))
    return importlib.import_module("demo_zerocache")


def test_the_demo_of_the_cache_says_what_its_peak_of_memory_is(zerocache_demo: ModuleType) -> None:
    cache = {"peak_bytes": 480e6, "tiers": {"device": 12e6, "host": 17e6}}
    said = zerocache_demo.peak({"activation_bytes": 273e6}, cache).replace("\n", " ")
    assert said.startswith("Of its peak of 480 MB, 29 MB are parameters and state, 273 MB activa")


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_the_result_of_the_demo_of_the_cache_fits_a_screen(
    zerocache_demo: ModuleType, capsys: pytest.CaptureFixture[str], apart: float
) -> None:
    memory = {"parameters": 25.3e6, "state_bytes": 9999e6, "activation_bytes": 9999e6}
    memory |= {"losses": [99.123456] * 20, "step_s": 99.99, "peak_bytes": 9999e6}
    cache = {"losses": [99.123456 + apart] * 20, "step_s": 999.99, "peak_bytes": 9999e6}
    cache["tiers"] = {"device": 499e6, "host": 499e6}
    cache["moved"] = {"ssd to host": 9999e6, "host to ssd": 9999e6}
    picture = TOP / "out" / "demo_zerocache.png"
    console = zerocache_demo.Console(width=80)
    assert zerocache_demo.show(memory, cache, picture, console) == (apart == 0)
    assert_fits_a_screen(capsys.readouterr().out, lines_around=1)


def test_the_demo_of_the_cache_refuses_too_few_steps(
    zerocache_demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert zerocache_demo.parse(["--steps", "4"]).steps == 4
    with pytest.raises(SystemExit):
        zerocache_demo.parse(["--steps", "3"])
    assert "--steps 3" in capsys.readouterr().err


def test_activations_are_what_a_forward_pass_saves_beside_parameters(
    zerocache_demo: ModuleType,
) -> None:
    """With the examples on the path, as the demo has them."""
    torch = importlib.import_module("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.Tanh())
    given = torch.ones(4, 8)
    with importlib.import_module("train_large_lm").SavedActivations(model) as saved:
        model(given).sum()
    # The layer's input and tanh's output, not the layer's weight.
    assert saved.bytes() == 4 * (4 * 8 + 4 * 16)


class Elastic:
    """A process of examples/train_elastic.py, with all it has printed so far."""

    def __init__(self, *arguments: str) -> None:
        script = str(TOP / "examples" / "train_elastic.py")
        self.process = subprocess.Popen(
            [sys.executable, script, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Reads on until a line matches; the end of the output is a failure."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in {self.printed}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def elastic() -> Iterator[Callable[..., Elastic]]:
    made: list[Elastic] = []

    def start(*arguments: str) -> Elastic:
        made.append(Elastic(*arguments))
        return made[-1]

    yield start
    for one in made:
        one.end()


elastic_only = pytest.mark.skipif(
    BACKEND != "taco" or not hasattr(torch.distributed, "_reconfigure"),
    reason="only taco, and torch from 2.14 on",
)


@elastic_only
def test_training_loses_a_rank_and_takes_one_in(elastic: Callable[..., Elastic]) -> None:
    port = elastic("store", "--port", "0").wait_for(r"port (\d+)")[1]
    endless = ["--port", port, "--steps", "1000000000"]
    members = [elastic("--members", "3", *endless) for _ in range(3)]
    for member in members:
        member.wait_for("group 1: rank . of 3 at step 0")
    members.pop(1).process.kill()
    for member in members:
        member.wait_for("is lost")
        member.wait_for("group 2: rank . of 2")
    members.append(elastic(*endless))
    for member in members:
        member.wait_for(r"group 3: rank . of 3 at step [1-9]")


@elastic_only
def test_training_that_might_have_shrunk_ends_as_any_other(
    elastic: Callable[..., Elastic],
) -> None:
    port = elastic("store", "--port", "0").wait_for(r"port (\d+)")[1]
    alone = elastic("--members", "1", "--port", port, "--steps", "60")
    assert float(alone.wait_for(r"accuracy (\d\.\d+)")[1]) > 0.7, alone.printed
    assert alone.process.wait(60) == 0, alone.printed
