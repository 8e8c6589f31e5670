"""taco_torch.empty: tensors in memory that is there from the start."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

import taco_torch


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize("size", [(7,), (2, 3), ((4, 5),), (torch.Size([1, 2, 3]),), ([6],)])
def test_it_has_the_shape_and_dtype_that_torch_empty_would_give(size: Any) -> None:
    for dtype in (None, torch.bfloat16, torch.int64, torch.bool):
        ours = taco_torch.empty(*size, dtype=dtype)
        theirs = torch.empty(*size, dtype=dtype, device="cpu")
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
        assert ours.is_contiguous()
        ours.fill_(1)
        assert bool((ours == 1).all())


def test_nothing_has_a_shape_too() -> None:
    assert taco_torch.empty(3, 0).shape == (3, 0)
    assert taco_torch.empty().shape == ()


def test_the_default_dtype_is_the_program_s() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert taco_torch.empty(2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_touching_it_takes_no_page_fault() -> None:
    size = 16 << 20
    torch.empty(1).fill_(1.0)
    tensor = taco_torch.empty(size, dtype=torch.uint8)
    before = faults()
    tensor.fill_(1)
    assert faults() - before < size // 4096 // 10


def test_a_large_one_begins_at_a_huge_page_and_asks_for_them() -> None:
    tensor = taco_torch.empty(8 << 20, dtype=torch.uint8)
    assert tensor.data_ptr() % (2 << 20) == 0
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        pytest.skip("no transparent huge pages here")
    places = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M
    )
    for place in places:
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", place)
        if bounds and int(bounds[1], 16) <= tensor.data_ptr() < int(bounds[2], 16):
            flags = re.search(r"^VmFlags: (.*)$", place, flags=re.M)
            assert flags is not None
            assert {"hg", "dc"} <= set(flags[1].split())
            return
    raise AssertionError("the tensor lies nowhere")


def test_a_view_keeps_the_memory() -> None:
    view = taco_torch.empty(1 << 20, dtype=torch.uint8).fill_(7)[5:10]
    again = taco_torch.empty(1 << 20, dtype=torch.uint8).fill_(8)
    assert view.tolist() == [7] * 5
    assert int(again[0]) == 8


def test_a_forked_child_goes_on_without_it() -> None:
    tensor = taco_torch.empty(8 << 20, dtype=torch.uint8).fill_(1)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert int(tensor[-1]) == 1


def test_bad_sizes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"size=\(2, -1\): no extent may be negative"):
        taco_torch.empty(2, -1)
    with pytest.raises(MemoryError, match=f"no {1 << 60} bytes of memory"):
        taco_torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(TypeError):
        taco_torch.empty("3")  # type: ignore[arg-type]
