"""A ZeroCache's caps are caps: what a process takes at its peak, and leaves behind."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import torch
from conftest import taco_only
from footprint import footprint, printed_by
from zerocache_models import TinyGPT, adamw, batches, make_cache, train

pytestmark = taco_only

MIB = 1 << 20
# Twelve layers of 4 MiB, and twice as much of state; prints the peak of what the rest took. With
# "plain": without an optimizer, in torch alone.
PROGRAM = """
import sys, torch
from torch import nn
from taco_torch.zerocache import ZeroCache

def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024

def step(model, optimizer):
    model(torch.ones(16, model[0].in_features)).square().mean().backward()
    optimizer.step()
    model.zero_grad()
    with torch.no_grad():
        model(torch.ones(16, model[0].in_features))

torch.manual_seed(0)
# Has torch set aside, and import, what it needs for itself.
small = nn.Sequential(nn.Linear(8, 8, bias=False))
step(small, torch.optim.AdamW(small.parameters()))
before = status("VmHWM")
folder, plain = sys.argv[1], sys.argv[2] == "plain"
cache = ZeroCache("12MiB", "20MiB", folder + ":256MiB", page="1MiB", threads=2)
model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12)))
if plain:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
else:
    model, optimizer = cache.wrap(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
for _ in range(4):
    step(model, optimizer)
if not plain:
    cache.save(folder + "/saved")
print(status("VmHWM") - before + status("RssShmem"))
"""


def test_the_peak_is_caps_gradients_and_little_else(tmp_path: Path) -> None:
    """The same without an optimizer, in plain torch, has weights beside that, and no caps."""
    weights, caps = 48 * MIB, 32 * MIB
    plain = printed_by(PROGRAM, tmp_path, "plain")
    assert plain > 2 * weights
    found = printed_by(PROGRAM, tmp_path, "cached")
    assert found <= plain - weights + caps + 64 * MIB, f"{found / MIB:.0f} MiB"
    print(f"{found / MIB:.0f} MiB beside {plain / MIB:.0f} of plain torch without an optimizer")


# As many gradients as weights leave in the backward pass; prints what of their memory is the
# process's after it, beside what was there before.
GRADIENTS = """
import sys, torch
from torch import nn
from taco_torch.zerocache import ZeroCache

def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024

cache = ZeroCache("20MiB", "20MiB", sys.argv[1] + ":512MiB", page="1MiB", threads=2)
# Layers of several sizes, so that the gap that one leaves is often too small for the next.
widths = [1024, 2048, 512, 3072, 1024, 2560, 768, 2048, 1536, 3072, 1024]
model = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:])))
model, optimizer = cache.wrap(
    model, torch.optim.AdamW(model.parameters()), step_in_backward=True, clipping=True
)
x = torch.ones(4, widths[0])
with torch.no_grad():
    model(x)
before = resident()
for _ in range(3):
    model(x).square().mean().backward()
    optimizer.step()
print(max(0, resident() - before))
"""


def test_memory_of_gradients_that_have_left_is_given_back(tmp_path: Path) -> None:
    assert printed_by(GRADIENTS, tmp_path) <= 40 * MIB  # of 95


EVALUATION_PASSES = 12


def test_passes_without_steps_write_what_steps_have_changed_once(tmp_path: Path) -> None:
    device, host = 12, 12
    model = TinyGPT()
    with make_cache(tmp_path, device, host) as cache:
        _, optimizer = cache.wrap(model, adamw(model))
        train(model, optimizer, 3)

        def written() -> int:
            return int(cache.stats()["ways"]["host to ssd"]["copies"])

        before, data = written(), batches()
        for _ in range(EVALUATION_PASSES):
            with torch.no_grad():
                model(next(data))
            model(next(data)).backward()
        assert before > 0
        assert cache.stats()["ways"]["ssd to host"]["copies"] > EVALUATION_PASSES * host
        assert written() - before <= device + host  # all that memory held


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    def once() -> None:
        model = TinyGPT(2)
        cache = make_cache(tmp_path, 12, 12)
        model, optimizer = cache.wrap(model, adamw(model))
        train(model, optimizer, 1)
        cache.close()

    once()
    gc.collect()
    before = footprint()
    for _ in range(5):
        once()
    gc.collect()
    after = footprint()
    for what in ("threads", "descriptors"):
        assert after[what] <= before[what], what
    assert after["mappings"] <= before["mappings"] + 8
    assert after["resident"] <= before["resident"] + 8 * MIB


def test_a_program_that_ends_without_close_leaves_nothing_on_disk(tmp_path: Path) -> None:
    program = (
        "import sys, torch\n"
        "from taco_torch.zerocache import ZeroCache\n"
        "cache = ZeroCache('4MiB', '4MiB', sys.argv[1] + ':8MiB', page='64KiB')\n"
        "model, _ = cache.wrap(torch.nn.Linear(8, 8))\n"
        "out = model(torch.ones(1, 8)).sum()\n"
        "print([p.name for p in __import__('pathlib').Path(sys.argv[1]).glob('*.slab')])\n"
        "if len(sys.argv) > 2: raise KeyError\n"
    )
    for more in ([], ["fail"]):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), *more],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == len(more), done.stderr
        assert ".slab" in done.stdout
        assert list(tmp_path.glob("*.slab")) == []
