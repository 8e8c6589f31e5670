"""Where NCCL, CUDA's runtime and the plugin for NCCL are, for tests and benchmarks: found without
importing torch."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

TOP = Path(__file__).parents[2]
PLUGIN = "libnccl-net-harp.so"
HOW_TO_GET = (
    "pip install --no-deps --target build/nccl/2.28.9 nvidia-nccl-cu13==2.28.9 (or another version)"
)


def _folders_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations if spec else None) or []]


def find_plugin() -> Path | None:
    """The one that NCCL_NET_PLUGIN names by its path, the installed one, or the built one."""
    named = os.environ.get("NCCL_NET_PLUGIN", "")
    if "/" in named:
        return Path(named) if Path(named).exists() else None
    for folder in (*_folders_of("taco_torch"), TOP / "build/release/csrc/ext/nccl"):
        if (folder / PLUGIN).exists():
            return folder / PLUGIN
    return None


def find_nccls() -> list[Path]:
    """Every libnccl.so.2: the installed one, and what HOW_TO_GET puts below build/nccl."""
    found = [folder / "nccl/lib/libnccl.so.2" for folder in _folders_of("nvidia")]
    found += sorted((TOP / "build/nccl").glob("*/nvidia/nccl/lib/libnccl.so.2"))
    return [library for library in found if library.exists()]


def find_cuda_runtime() -> Path | None:
    """libcudart.so of the packages that torch is installed with."""
    for folder in _folders_of("nvidia"):
        for library in sorted(folder.glob("c*/lib/libcudart.so.*")):
            return library
    return None
