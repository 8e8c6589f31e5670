"""A ZeroCache whose disk is full, fails or goes away, and whose process is killed: what was saved
stays, and what was not is never used as if it were whole."""

from __future__ import annotations

import json
import os
import re
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


def test_a_disk_that_takes_nothing_is_not_missed_while_memory_has_room(tmp_path: Path) -> None:
    cache, model, optimizer = wrapped(tmp_path / "undisturbed")
    expected = train(model, optimizer, 4)
    cache.close()
    cache, model, optimizer = wrapped(tmp_path / "cache", (400, 12, 400))
    data = batches()
    with disk_takes_nothing():
        losses = train(model, optimizer, 3, data)
    written = cache.stats()["ways"]["host to ssd"]
    assert written["copies"] == written["failed"] == 0  # device memory is asked first
    assert losses + train(model, optimizer, 1, data) == expected
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


def test_a_directory_that_is_removed_while_it_is_in_use_is_named_at_the_next_write(
    tmp_path: Path,
) -> None:
    cache, model, optimizer = wrapped(tmp_path / "cache")
    data = batches()
    losses = train(model, optimizer, 1, data)
    cache.save(tmp_path / "saved")
    (slab,) = (tmp_path / "cache").glob("*.slab")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(RuntimeError, match=f"{re.escape(str(slab))} was removed while this cache"):
        train(model, optimizer, 2, data)
    with pytest.raises(RuntimeError, match=r"once more.*\.slab was removed"):
        cache.close()  # state is in the way of what is to be read, and cannot leave
    cache.close()
    assert torch.isfinite(model(next(batches())))
    again, model, optimizer = wrapped(tmp_path / "again")
    again.load(tmp_path / "saved")
    data = batches()
    next(data)
    losses += train(model, optimizer, 2, data)
    again.close()
    undisturbed, model, optimizer = wrapped(tmp_path / "undisturbed")
    assert losses == train(model, optimizer, 3)
    undisturbed.close()


# Reads of a cache's file, as many as fail_reads() says and after as many as it says, fail as a
# disk's do.
FAULTY_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_long before, left;

void fail_reads(long count, long after) {
  left = 0;
  before = after;
  left = count;
}

static int fails(int fd) {
  if (left <= 0) return 0;
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (strstr(path, ".slab") == NULL || atomic_fetch_sub(&before, 1) > 0) return 0;
  return atomic_fetch_sub(&left, 1) > 0;
}

ssize_t pread64(int fd, void* to, size_t bytes, off_t at) {
  static ssize_t (*real)(int, void*, size_t, off_t);
  if (real == NULL) real = (ssize_t (*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
  if (!fails(fd)) return real(fd, to, bytes, at);
  errno = EIO;
  return -1;
}

ssize_t pread(int fd, void* to, size_t bytes, off_t at) { return pread64(fd, to, bytes, at); }
"""

READS_FAIL = """
import ctypes, sys
from pathlib import Path
import pytest, torch
from zerocache_models import TinyGPT, adamw, batches, make_cache, train

library = ctypes.CDLL(None)
library.fail_reads.argtypes = [ctypes.c_long, ctypes.c_long]

def fail_reads(count, after=0):
    library.fail_reads(count, after)

folder = Path(sys.argv[1])

def wrapped(name):
    model = TinyGPT()
    cache = make_cache(folder / name, 12, 12, 400, io="threads")
    return cache, *cache.wrap(model, adamw(model))

undisturbed, model, optimizer = wrapped("undisturbed")
expected = train(model, optimizer, 4)
undisturbed.close()

cache, model, optimizer = wrapped("cache")
data, losses = batches(), []
for _ in range(2):  # one read of each pass fails, and is tried again
    fail_reads(1)
    loss = model(next(data))
    fail_reads(1)
    loss.backward()
    fail_reads(1)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses == expected[:2], (losses, expected)
assert cache.stats()["ways"]["ssd to host"]["failed"] >= 4
cache.save(folder / "saved")

tokens = next(data)
fail_reads(1 << 30)
with pytest.raises(RuntimeError) as caught:
    model(tokens)
print(caught.value)
fail_reads(0)  # a pass has changed nothing
loss = model(tokens)
assert loss.item() == expected[2]
loss.backward()
# After more than memory holds: whatever was read ahead by now, the step has begun by then, and is
# not at its end. If it had not begun, nothing would have changed, and it could be repeated.
fail_reads(1 << 30, after=2 * (12 + 12))
with pytest.raises(RuntimeError, match=r"two steps.*(?i:input/output error)"):
    optimizer.step()
with pytest.raises(RuntimeError, match="load a checkpoint"):
    model(tokens)
fail_reads(0)
cache.load(folder / "saved")
optimizer.zero_grad()
data = batches()
next(data), next(data)
assert train(model, optimizer, 2, data) == expected[2:]
fail_reads(1 << 30)
with pytest.raises(RuntimeError, match="(?i)input/output error"):
    cache.close()  # cannot give back what it cannot read
fail_reads(0)
cache.close()
assert torch.isfinite(model(tokens))
assert list((folder / "cache").glob("*.slab")) == []
"""


def test_a_disk_whose_reads_fail_once_or_for_good(tmp_path: Path) -> None:
    source, library = tmp_path / "faulty.c", tmp_path / "faulty.so"
    source.write_text(FAULTY_READS)
    build = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(build, check=True)
    support = Path(__file__).parents[2] / "support"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "PYTHONPATH": f"{support}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        [sys.executable, "-c", READS_FAIL, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # File, page and tensor.
    words = r"page \d+ \(.*(blocks|tokens|norm|places).*\): reading \d+ bytes at \d+ of .*\.slab"
    assert re.search(words, done.stdout), done.stdout


@pytest.mark.whole(instead="Kill.AtRandomMomentsOfSaveLosesNothingThatWasSaved")
def test_kills_at_random_moments_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "support" / "zerocache_kills.py"
    command = [sys.executable, str(program), str(tmp_path / "kills"), "--kills", KILLS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["kills"] == int(KILLS)
    assert found["saved"] > 0


def test_a_directory_named_by_a_relative_path_is_the_same_after_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taco_torch.zerocache import ZeroCache

    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    cache = ZeroCache("64KiB", "64KiB", ssd="here:1MiB", page="4KiB")
    monkeypatch.chdir(tmp_path / "elsewhere")
    cache.close()
    assert not list((tmp_path / "here").iterdir())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_load_heals_pages_that_cannot_be_read(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", 12, 8)
    model, optimizer = cache.wrap(model := TinyGPT(), adamw(model))
    train(model, optimizer, 2)
    cache.save(tmp_path / "saved")
    expected = {name: cache.full(name) for name, _ in model.named_parameters()}
    with open(next((tmp_path / "cache").glob("*.slab")), "r+b") as slab:
        slab.write(os.urandom(8 << 20))
    with pytest.raises(RuntimeError, match="other bytes"):
        optimizer.state_dict()
    cache.load(tmp_path / "saved")
    for name, values in expected.items():
        assert torch.equal(cache.full(name), values)
    assert len(train(model, optimizer, 2)) == 2
    cache.close()
    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_whose_pages_cannot_be_read_is_closed_without_them(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", 12, 8)
    model, optimizer = cache.wrap(model := TinyGPT(), adamw(model))
    train(model, optimizer, 2)
    with open(next((tmp_path / "cache").glob("*.slab")), "r+b") as slab:
        slab.write(os.urandom(8 << 20))
    with pytest.raises(RuntimeError, match=r"close\(\) once more.*other bytes"):
        cache.close()
    assert not cache.closed  # another try may read what this one could not
    with pytest.raises(RuntimeError, match=r"cache is closed.*the first is parameter '.*other byt"):
        cache.close()
    assert cache.closed
    assert not list((tmp_path / "cache").iterdir())
    with pytest.raises(RuntimeError, match="could not be read any more"):
        model(next(batches()))
    cache.close()
