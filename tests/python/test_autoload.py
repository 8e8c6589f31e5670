"""Where taco_torch is installed, torch knows the backend by itself; no other program notices."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from conftest import taco_only

import taco_torch

pytestmark = taco_only

TOP = Path(__file__).resolve().parents[2]
PACKAGE = Path(taco_torch.__file__).parent
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
ENTRY = re.compile(r'^\[project\.entry-points\."([\w.]+)"\]\n(\w+) = "(\S+)"$', re.MULTILINE)

# No name holds the backend beyond destroy_process_group: a gloo group that outlives it has threads
# that let go of tensors while the interpreter ends, which now and then aborts the process.
ONE_RANK = """
store = dist.HashStore()
dist.init_process_group({backend!r}, store=store, rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.sum().item() == 3
backend = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
assert backend == "ProcessGroupTaco", backend
dist.destroy_process_group()
print("done")
"""


def entry_points() -> set[tuple[str, str, str]]:
    """(group, name, value) of every entry point that pyproject.toml declares."""
    found = set(ENTRY.findall((TOP / "pyproject.toml").read_text()))
    groups = {"torch.backends", "torch.distributed.backends", "torch.distributed.transports"}
    assert {group for group, _, _ in found} == groups
    return found


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with what an installation leaves for torch to find."""
    folder = tmp_path / "taco_torch-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: taco_torch\nVersion: 0\n")
    lines = [f"[{group}]\n{name} = {value}\n" for group, name, value in entry_points()]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def run(
    site: Path, code: str, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in (str(site), str(PACKAGE.parent)) if p)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def succeeds(site: Path, code: str, **environment: str) -> str:
    done = run(site, code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("backend", ["taco", "cpu:taco", "cpu:taco,cuda:taco"])
def test_a_program_needs_no_import(site: Path, backend: str) -> None:
    code = "import torch, torch.distributed as dist" + ONE_RANK.format(backend=backend)
    assert "done" in succeeds(site, code)


@pytest.mark.parametrize("imports", ["taco_torch, torch", "torch, taco_torch"])
@pytest.mark.parametrize("automatic", ["0", "1"])
def test_the_explicit_import_works_in_either_order(
    site: Path, imports: str, automatic: str
) -> None:
    code = f"import {imports}, torch.distributed as dist" + ONE_RANK.format(backend="taco")
    assert "done" in succeeds(site, code, TORCH_DEVICE_BACKEND_AUTOLOAD=automatic)


@pytest.mark.skipif(VERSION < (2, 14), reason="torch asks for backends by name from 2.14 on")
def test_torch_asks_for_the_backend_by_its_name(site: Path) -> None:
    code = "import torch, torch.distributed as dist" + ONE_RANK.format(backend="taco")
    assert "done" in succeeds(site, code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_every_entry_point_is_callable_and_so_is_the_installed_one() -> None:
    for group, name, value in entry_points():
        entry = metadata.EntryPoint(name, value, group)
        if group == "torch.distributed.transports" and VERSION < (2, 15):
            with pytest.raises(ImportError, match=r"needs torch 2\.15"):
                entry.load()
        else:
            assert callable(entry.load())
    installed = metadata.distribution("taco_torch")
    if not Path(str(installed.locate_file("taco_torch"))).samefile(PACKAGE):
        pytest.skip("what is imported was not installed by pip")
    found = {
        (entry.group, entry.name, entry.value)
        for entry in installed.entry_points
        if entry.group != "console_scripts"
    }
    assert found == entry_points()


def test_importing_torch_brings_a_stub_and_nothing_else(site: Path) -> None:
    """No extension, no module of the standard library, no thread."""
    code = """
import importlib.metadata, json, logging, os, sys, torch
before, threads = set(sys.modules), len(os.listdir("/proc/self/task"))
torch._import_device_backends()
assert torch.distributed.Backend.TACO == "taco"
assert len(os.listdir("/proc/self/task")) == threads
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    added = json.loads(succeeds(site, code, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))
    assert added == ["_taco_torch_autoload"]


def test_a_registration_that_fails_is_said_and_ends_nothing(site: Path) -> None:
    code = """
import torch
def refuse(*args, **kwargs): raise ValueError("refused")
torch.distributed.Backend.register_backend = refuse
torch._import_device_backends()
print("goes on")
"""
    done = run(site, code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    assert "goes on" in done.stdout
    assert "could not be registered" in done.stderr
    assert "refused" in done.stderr


def installation_for(torch_versions: list[str], site: Path) -> None:
    """Puts a copy of the package into ``site`` that says it was built for other torches, and whose
    extension cannot be loaded, as such a one may not be."""
    copy = site / "taco_torch"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "_build.json").write_text(json.dumps({"version": "0", "torch": torch_versions}))
    extensions = list(copy.glob("_C_torch_*.so"))
    assert extensions
    for extension in extensions:
        extension.write_bytes(b"of another torch")


def test_an_installation_for_another_torch_harms_only_those_who_use_it(site: Path) -> None:
    installation_for(["2.98.1", "2.99.0"], site)
    code = "import torch, torch.distributed as dist, taco_torch" + ONE_RANK
    gloo = code.replace("ProcessGroupTaco", "ProcessGroupGloo").format(backend="gloo")
    assert "done" in succeeds(site, gloo)
    done = run(site, code.format(backend="taco"))
    assert done.returncode != 0
    assert "VersionMismatchError" in done.stderr
    assert "2.99.0" in done.stderr
    assert torch.__version__ in done.stderr


STRANGERS = {
    "an empty folder": ("taco_torch", None),
    "a folder of something else": ("taco_torch/__init__.py", "answer = 42"),
    "a package that raises": ("taco_torch/__init__.py", "raise RuntimeError('not this one')"),
    "a module that ends the program": ("taco_torch.py", "raise SystemExit('not this one')"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_what_has_the_name_of_the_package_matters_only_to_a_taco_group(
    site: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("program")
    name, content = STRANGERS[kind]
    if content is None:
        (folder / name).mkdir()
    else:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    code = "import torch, torch.distributed as dist" + ONE_RANK
    gloo = code.replace("ProcessGroupTaco", "ProcessGroupGloo").format(backend="gloo")
    done = run(site, gloo, folder)
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    assert done.stderr == ""
    done = run(site, code.format(backend="taco"), folder)
    if content is None:  # Python prefers a package, wherever it is, to a folder without code
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode != 0
    hider = folder / "taco_torch.py" if name == "taco_torch.py" else folder / "taco_torch"
    assert f"ImportError: {hider} hides the installed package taco_torch" in done.stderr


def test_a_name_that_needs_the_extension_says_why_it_cannot_be_had(site: Path) -> None:
    installation_for(["2.98.1", "2.99.0"], site)
    done = run(site, "import taco_torch; taco_torch.stats()")
    assert done.returncode != 0
    assert "VersionMismatchError: taco_torch 0 was built for torch 2.98.1 and 2.99.0" in done.stderr


def test_futures_are_wrapped_by_the_first_group_whenever_their_names_were_taken(site: Path) -> None:
    code = """
from torch.futures import collect_all
import torch, torch.distributed as dist
original = torch._C._collect_all
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert torch._C._collect_all is original
group = dist.new_group(backend="taco")
future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
combined = collect_all([future])
assert type(combined) is type(future) is not torch.futures.Future, type(combined)
combined.wait()
"""
    succeeds(site, code)


def test_every_public_name_is_found_at_first_use() -> None:
    code = (
        "import taco_torch\nfor name in taco_torch.__all__: print(name, getattr(taco_torch, name))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(shown.stdout.splitlines()) == len(taco_torch.__all__)
    assert set(taco_torch.__all__) <= set(dir(taco_torch))
    with pytest.raises(AttributeError, match="nothing"):
        _ = taco_torch.nothing
