"""The wheel: one file that pip and uv install beside a torch, and with which ranks then train.

It is built for the torch that the tests run with; TACO_WHEEL=FILE tests one that is there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

TOP = Path(__file__).parents[1]
SITE = Path(sysconfig.get_path("purelib"))
MAX_BYTES = 20_000_000
MAX_EXTENSION_BYTES = 5_000_000
PLATFORM = re.compile(r"-cp3\d+-cp3\d+-manylinux_2_(\d+)_\w+\.whl$")

pytestmark = pytest.mark.whole(because="a wheel takes a build of its own, of several minutes")


def run(*command: str | Path, where: Path = TOP, **variables: str) -> str:
    """Standard output of a command that must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        list(map(str, command)),
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it, with its debug information beside it."""
    given = os.environ.get("TACO_WHEEL")
    if given:
        return Path(given).resolve()
    # As somebody does who types it, but that nothing is downloaded.
    torches = f"TORCHES={Path(torch.__file__).parent}"
    with open(TOP / "build" / "wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this test run builds it too
        shown = run("make", "wheel", torches, f"PYTHON={sys.executable}", "DEBUG=1")
        built = TOP / shown.split()[-1]
        copies = tmp_path_factory.mktemp("wheel")
        for file in built.parent.glob("-".join(built.name.split("-")[:-1]) + "*"):
            shutil.copy(file, copies)
    return copies / built.name


def test_it_is_small_and_fits_systems_as_old_as_it_says(wheel: Path) -> None:
    platform = PLATFORM.search(wheel.name)
    assert platform is not None, wheel.name
    assert int(platform[1]) <= 34
    assert wheel.stat().st_size <= MAX_BYTES
    with zipfile.ZipFile(wheel) as file:
        sizes = {each.filename: each.file_size for each in file.infolist()}
    extensions = [name for name in sizes if name.startswith("taco_torch/_C_torch_")]
    assert extensions
    assert {name: sizes[name] for name in extensions if sizes[name] > MAX_EXTENSION_BYTES} == {}


def test_it_holds_an_extension_for_each_torch_that_it_names(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        build = json.loads(file.read("taco_torch/_build.json"))
        names = "\n".join(file.namelist())
    minors = ["_".join(version.split(".")[:2]) for version in build["torch"]]
    assert sorted(re.findall(r"^taco_torch/_C_torch_(\d+_\d+)\.", names, re.M)) == sorted(minors)


def test_its_debug_information_is_found_beside_it(wheel: Path, tmp_path: Path) -> None:
    """By whatever follows a debug link: addr2line here, as gdb does."""
    (apart,) = wheel.parent.glob("-".join(wheel.name.split("-")[:-1]) + "-debug.tar")
    minor = "_".join(torch.__version__.split(".")[:2])
    with zipfile.ZipFile(wheel) as file:
        (name,) = (each for each in file.namelist() if f"/_C_torch_{minor}." in each)
        extension = Path(file.extract(name, tmp_path))
    symbols = run("nm", "-D", "--defined-only", extension)
    (address,) = re.findall(r"^(\w+) T PyInit__C$", symbols, re.MULTILINE)
    where = ["addr2line", "-e", extension, address]
    assert run(*where).startswith("??")
    with tarfile.open(apart) as archive:
        archive.extractall(extension.parent, filter="data")
    assert "csrc/bindings.cc" in run(*where)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that has all that this one has, torch above all, but no taco_torch. Its
    packages are links into this one's: torch fills half a gigabyte. Their records are copies, as
    uv follows no links."""
    folder = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (theirs,) = folder.glob("lib/python3*/site-packages")
    for package in SITE.iterdir():
        if "taco_torch" in package.name or package.suffix == ".pth":
            continue
        if package.suffix == ".dist-info":
            shutil.copytree(package, theirs / package.name)
        else:
            (theirs / package.name).symlink_to(package)
    return folder


def install(installer: str, wheel: Path, environment: Path) -> None:
    """Without a look at any registry: what is needed is there."""
    python = environment / "bin" / "python"
    if installer == "pip":
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel)
    else:
        command = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-index"]
        run(*command, "--python", python, wheel)


@pytest.mark.parametrize(("installer", "transport"), [("pip", "shm"), ("uv", "udp")])
def test_two_ranks_train_with_it_in_an_environment_that_had_nothing_but_torch(
    wheel: Path, environment: Path, tmp_path: Path, installer: str, transport: str
) -> None:
    python = environment / "bin" / "python"
    hidden = "import importlib.util as u; assert u.find_spec('taco_torch') is None"
    run(python, "-c", hidden, where=tmp_path)
    install(installer, wheel, environment)

    where_from = "from taco_torch import _C; print(_C.__file__, _C.built_for_torch)"
    file, built_for = run(python, "-c", where_from, where=tmp_path).split()
    assert Path(file).is_relative_to(environment)
    assert built_for.split(".")[:2] == torch.__version__.split(".")[:2]

    report = tmp_path / "result.json"
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = [TOP / "examples" / "train_digits.py", "--backend", "taco", "--epochs", "3"]
    run(*launcher, *program, "--json", report, where=tmp_path, TACO_TRANSPORT=transport)
    result = json.loads(report.read_text())
    assert (result["backend"], result["world"]) == ("taco", 2)
    assert result["accuracy"] > 0.8
    assert result["replicas_identical"]


def test_its_commands_run_beside_a_python_that_has_no_torch(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    install_alone = ["install", "--no-index", "--no-deps", wheel]
    run(sys.executable, "-m", "pip", "--python", python, *install_alone)
    measured = run(
        folder / "bin" / "harp-perf", "--json", "--measure", "latency", "--sizes", "8", "--tcp"
    )
    rows = json.loads(measured)["rows"]
    assert [row["by"] for row in rows] == ["harp", "tcp", "tcp-polling"]
    assert all(row["p50_us"] > 0 for row in rows)
    assert "--prometheus" in run(folder / "bin" / "harp-stat", "--help")


def test_a_torch_that_it_is_not_for_is_named_with_what_to_do(
    wheel: Path, environment: Path
) -> None:
    install("pip", wheel, environment)
    code = """
import torch
torch.__version__ = "2.99.0"
import taco_torch
try:
    taco_torch.stats()
except taco_torch.VersionMismatchError as error:
    print(error)
"""
    shown = run(environment / "bin" / "python", "-c", code)
    assert "torch 2.99.0 is running" in shown
    minor = ".".join(torch.__version__.split(".")[:2])
    assert re.search(rf"was built for torch .*\b{re.escape(minor)}\.", shown)
    assert re.search(r'pip install "torch==2\.\d+\.\*"', shown)
