"""The synthetic benchmark: its models are what they are said to be, and its lines Horovod's."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from emulated import MODELS, Emulated
from marks import whole
from pytorch_synthetic_benchmark import OwnGradients, Untouched, make_job, parse_arguments
from synthetic_models import TASKS, Bert, TransformerXL, shapes_of, shifted
from torch.nn import functional
from torchrun import run_forked
from warm_python import WarmPython

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "pytorch_synthetic_benchmark.py"
BACKENDS = ["gloo", "taco", "horovod"]
# Each rank does two iterations of two steps of a thousandth of VGG16's gradients.
EMULATED = ["--model=vgg16", "--emulate-compute=10", "--scale=1000", "--batch-size=8", "--no-cuda"]
SHORT = ["--num-warmup-batches=1", "--num-batches-per-iter=2", "--num-iters=2"]


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    with WarmPython(["torch._dynamo"], {"OMP_NUM_THREADS": "1"}) as made:
        yield made


def skip_without(backend: str) -> None:
    if backend != "gloo":
        package = "taco_torch.horovod" if backend == "horovod" else "taco_torch"
        pytest.importorskip(package, reason="the package is not installed")


# -- Models


@pytest.mark.parametrize(
    ("name", "count"),
    [("vgg16", 138_357_544), ("resnet50", 25_557_032), ("bert", 109_482_240)],
)
def test_a_model_has_the_published_number_of_parameters(name: str, count: int) -> None:
    assert sum(map(math.prod, shapes_of(name))) == count


@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_emulated_in_the_layout_of_the_model(name: str) -> None:
    emulated = [shape for layer in MODELS[name]() for shape in layer.shapes]
    assert list(shapes_of(name)) == emulated


def test_parameters_have_the_published_names() -> None:
    with torch.device("meta"):
        vgg, resnet = TASKS["vgg16"].make(), TASKS["resnet50"].make()
    names = [name for name, _ in vgg.named_parameters()]
    assert (names[0], names[-1]) == ("features.0.weight", "classifier.6.bias")
    names = [name for name, _ in resnet.named_parameters()]
    assert {"conv1.weight", "layer1.0.downsample.0.weight", "layer4.2.bn3.bias"} <= set(names)
    assert names[-1] == "fc.bias"


@pytest.mark.parametrize(
    "name", ["resnet50", whole("bert"), whole("vgg16"), whole("transformer_xl")]
)
def test_a_model_learns_its_batch(name: str) -> None:
    """One step along the gradient makes the loss smaller, and every parameter has one."""
    torch.manual_seed(0)
    task = TASKS[name]
    model = task.make()
    inputs, targets = task.inputs(2), task.targets(2)

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(inputs).flatten(0, -2), targets)

    before = loss()
    before.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
        assert loss() < before


def test_attention_by_distance_reads_the_vector_of_the_distance() -> None:
    tokens = 5
    by_distance = torch.arange(tokens - 1, -1, -1).float().expand(2, tokens, tokens)
    found = shifted(by_distance)
    for i in range(tokens):
        for j in range(i + 1):
            assert found[1, i, j] == i - j


def test_a_word_is_guessed_from_earlier_ones_alone() -> None:
    class Small(TransformerXL):
        VOCABULARY, CANDIDATES = 50, 10

    torch.manual_seed(0)
    model = Small()
    words = torch.randint(50, (1, 12))
    changed = words.clone()
    changed[0, 8:] = (changed[0, 8:] + 1) % 50
    with torch.no_grad():
        one, other = model(words), model(changed)
    assert torch.equal(one[0, :8], other[0, :8])
    assert not torch.equal(one[0, 8:], other[0, 8:])


def test_batches_fit_their_models() -> None:
    assert TASKS["bert"].targets(3).shape == (3 * len(range(0, 128, Bert.EVERY)),)
    assert TASKS["transformer_xl"].targets(2).max() < TransformerXL.CANDIDATES


def test_emulated_gradients_share_no_memory_where_they_are_averaged_in_place() -> None:
    layers = [layer.scaled(1000) for layer in MODELS["resnet50"]()]
    model = Emulated(layers, backward=0.0, seed=1)
    model.gradients = OwnGradients(model.gradients)  # type: ignore[assignment]
    model(torch.ones(1, requires_grad=True)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    starts = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    assert len(starts) == len(gradients)


def test_an_emulated_step_leaves_the_parameters_alone() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    Untouched([parameter], lr=1.0).step()
    assert parameter.tolist() == [1, 1, 1]


# -- Lines


def lines_of(text: str, ranks: int, unit: str = "img") -> None:
    """Checks all lines, in order."""
    number = r"\d+\.\d"
    expected = [
        "Model: vgg16",
        "Batch size: 8",
        f"Number of CPUs: {ranks}",
        r"Running warmup\.\.\.",
        r"Running benchmark\.\.\.",
        f"Iter #0: {number} {unit}/sec per CPU",
        f"Iter #1: {number} {unit}/sec per CPU",
        rf"{unit.capitalize()}/sec per CPU: {number} \+-{number}",
        rf"Total {unit}/sec on {ranks} CPU\(s\): {number} \+-{number}",
    ]
    lines = text.splitlines()
    assert len(lines) == len(expected), text
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), text


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_ranks_print_horovods_lines_once(
    python: WarmPython, backend: str, tmp_path: Path
) -> None:
    skip_without(backend)
    result = tmp_path / "result.json"
    options = [f"--backend={backend}", f"--json={result}", *EMULATED, *SHORT]
    done = run_forked(python, [SCRIPT, *options], 2, {"TACO_LOG": "error"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines_of(done.stdout, ranks=2)
    found = json.loads(result.read_text())
    assert (found["ranks"], found["backend"], len(found["per_second"])) == (2, backend, 2)
    # Two ranks of 8 images in 10 ms at least.
    assert found["mean"] <= 8 / 0.010


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_process_alone_needs_no_launcher(backend: str) -> None:
    skip_without(backend)
    command = [sys.executable, str(SCRIPT), f"--backend={backend}", *EMULATED, *SHORT]
    started = re.compile("RANK|WORLD_SIZE|MASTER_")
    variables = {name: text for name, text in os.environ.items() if not started.search(name)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines_of(done.stdout, ranks=1)


@pytest.mark.parametrize("option", ["--fp16-allreduce", "--lightcc"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_take_less_of_the_network(python: WarmPython, backend: str, option: str) -> None:
    skip_without(backend)
    if (backend, option) == ("gloo", "--lightcc"):
        pytest.skip("gloo has no lightcc: a test below sees it refused")
    options = [f"--backend={backend}", option, *EMULATED, *SHORT]
    done = run_forked(python, [SCRIPT, *options], 2, {"TACO_LOG": "error"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines_of(done.stdout, ranks=2)


def test_adasum_is_horovods(python: WarmPython) -> None:
    skip_without("horovod")
    done = run_forked(python, [SCRIPT, "--use-adasum", *EMULATED, *SHORT], 2, {"TACO_LOG": "error"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines_of(done.stdout, ranks=2)


@pytest.mark.whole(instead="test_two_ranks_print_horovods_lines_once")
def test_two_ranks_train_a_real_model(python: WarmPython) -> None:
    options = ["--model=resnet50", "--batch-size=2", "--no-cuda", "--backend=taco", *SHORT]
    done = run_forked(python, [SCRIPT, *options], 2, {"TACO_LOG": "error"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Total img/sec on 2 CPU(s): " in done.stdout


def test_gradients_of_gpus_are_refused_where_nobody_would_average_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match=r"give --no-cuda, or --backend taco"):
        make_job(parse_arguments(["--model=vgg16"]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model resnet51", "invalid choice: 'resnet51'"),
        ("--batch-size 0", "--batch-size is 0, but must be 1 or more"),
        ("--num-iters 0", "--num-iters is 0, but must be 1 or more"),
        ("--num-warmup-batches -1", "--num-warmup-batches is -1, but must be 0 or more"),
        ("--emulate-compute -1", "--emulate-compute is -1, but must be 0 or more"),
        ("--scale 25", "--scale is for --emulate-compute"),
        ("--backend gloo --lightcc", "--lightcc is taco's: --backend gloo sends all"),
        ("--backend taco --use-adasum", "--use-adasum is Horovod's: --backend taco cannot"),
        ("--lightcc --fp16-allreduce", "give one of them"),
    ],
)
def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(words.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
