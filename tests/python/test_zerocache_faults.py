"""A ZeroCache whose disk is full, fails or goes away, and whose process is killed: what was saved
stays, and what was not is never used as if it were whole."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from zerocache_models import TinyGPT, adamw, batches, make_cache, train

pytestmark = taco_only

SMALL = (12, 12, 400)
KILLS = os.environ.get("TACO_TEST_ZEROCACHE_KILLS", "10")


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Path]:
    """A small file system."""
    folder.mkdir()
    size = f"size={megabytes}m"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(folder)]).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def disk_takes_nothing() -> Iterator[None]:
    """Files are written nowhere: each try is an error (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def wrapped(folder: Path, caps: tuple[int, int, int] = SMALL) -> tuple[Any, Any, Any]:
    model = TinyGPT()
    cache = make_cache(folder, *caps)
    return cache, *cache.wrap(model, adamw(model))


def backward(model: Any) -> None:
    model(next(batches())).backward()


def fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def make_sparse(folder: Path) -> None:
    """The cache's file takes up what is written to it, as on file systems that cannot set room
    aside."""
    (slab,) = folder.glob("*.slab")
    size = slab.stat().st_size
    os.truncate(slab, 0)
    os.truncate(slab, size)


@pytest.mark.parametrize("closes", [False, True])
def test_a_disk_that_fills_up_in_mid_step(tmp_path: Path, closes: bool) -> None:
    undisturbed, model, optimizer = wrapped(tmp_path / "undisturbed")
    expected = train(model, optimizer, 2)
    undisturbed.close()
    with mounted(tmp_path / "small", 16) as small:
        model = TinyGPT()
        cache = make_cache(small, *SMALL)
        make_sparse(small)
        model, optimizer = cache.wrap(model, adamw(model))
        cache.save(tmp_path / "saved")
        backward(model)
        ballast = fill(small)
        with pytest.raises(RuntimeError, match=r"two steps.*(?i:no space left)"):
            optimizer.step()
        with pytest.raises(RuntimeError, match="load a checkpoint"):
            model(next(batches()))
        if closes:
            cache.close()
            assert torch.isfinite(model(next(batches())))
        else:
            ballast.unlink()
            cache.load(tmp_path / "saved")
            optimizer.zero_grad()
            assert train(model, optimizer, 2) == expected
            cache.close()
        again, model, optimizer = wrapped(tmp_path / "undisturbed")
        again.load(tmp_path / "saved")
        assert train(model, optimizer, 2) == expected
        again.close()


def test_a_disk_that_takes_nothing_for_a_while(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path / "cache")
    expected = train(model, optimizer, 3)
    cache.close()
    cache, model, optimizer = wrapped(tmp_path / "cache")
    data = batches()
    train(model, optimizer, 1, data)
    cache.save(tmp_path / "saved")
    backward(model)
    with disk_takes_nothing(), pytest.raises(RuntimeError, match="two steps"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="load a checkpoint"):
        cache.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    cache.load(tmp_path / "saved")
    optimizer.zero_grad()
    assert train(model, optimizer, 2, data) == expected[1:]
    cache.close()


def test_a_parameter_that_is_half_written_is_not_used(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path / "cache")
    train(model, optimizer, 1)
    cache.save(tmp_path / "saved")
    before = {name: cache.full(name) for name, _ in model.named_parameters()}

    def write_all() -> None:
        for name, values in before.items():
            cache.full(name, values + 1)

    with (
        disk_takes_nothing(),
        pytest.raises(RuntimeError, match=r"failed in the middle.*(?i:file too large)"),
    ):
        write_all()
    with pytest.raises(RuntimeError, match=r"writing '.*' failed in the middle.*load a checkpoint"):
        model(next(batches()))
    with pytest.raises(RuntimeError, match="load a checkpoint"):
        cache.full("norm.weight")
    cache.load(tmp_path / "saved")
    assert all(torch.equal(cache.full(name), values) for name, values in before.items())
    train(model, optimizer, 1)
    cache.close()


def test_a_directory_that_is_removed_while_it_is_in_use(tmp_path: Path) -> None:
    undisturbed, model, optimizer = wrapped(tmp_path / "undisturbed")
    expected = train(model, optimizer, 4)
    undisturbed.close()
    cache, model, optimizer = wrapped(tmp_path / "cache")
    data = batches()
    losses = train(model, optimizer, 1, data)
    cache.save(tmp_path / "saved")
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "saved")
    losses += train(model, optimizer, 2, data)
    cache.save(tmp_path / "saved")
    assert losses + train(model, optimizer, 1, data) == expected
    cache.load(tmp_path / "saved")
    optimizer.zero_grad()
    data = batches()
    for _ in range(3):
        next(data)
    assert train(model, optimizer, 1, data) == expected[3:]
    cache.close()


def test_kills_at_random_moments_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "support" / "zerocache_kills.py"
    command = [sys.executable, str(program), str(tmp_path / "kills"), "--kills", KILLS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["kills"] == int(KILLS)
    assert found["saved"] > 0
