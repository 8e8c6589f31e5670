"""The installation, read without importing torch or the extension."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

_BUILD = Path(__file__).parents[1] / "_build.json"


def version() -> str:
    """The version of taco_torch; "unknown" in a source folder that was never built."""
    try:
        return str(json.loads(_BUILD.read_text())["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"


def built_for() -> list[str]:
    """The versions of torch that an extension is there for."""
    try:
        return [str(each) for each in json.loads(_BUILD.read_text())["torch"]]
    except (OSError, ValueError, KeyError):
        return []


def torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def check_build() -> str:
    """The answer to --check-build, in the form of horovodrun's."""
    torch = torch_version()
    fits = torch is not None and any(
        torch.split(".")[:2] == each.split(".")[:2] for each in built_for()
    )
    mark = "X" if fits else " "
    lines = [
        f"taco_torch v{version()}, Horovod-compatible:",
        "",
        "Available Frameworks:",
        "    [ ] TensorFlow",
        f"    [{mark}] PyTorch",
        "    [ ] MXNet",
        "",
        "Available Controllers:",
        "    [ ] MPI",
        "    [ ] Gloo",
        f"    [{mark}] taco",
        "",
        "Available Tensor Operations:",
        "    [ ] NCCL",
        "    [ ] DDL",
        "    [ ] CCL",
        "    [ ] MPI",
        "    [ ] Gloo",
        f"    [{mark}] taco",
    ]
    if not fits:
        lines += ["", f"torch {torch or 'is not installed'}; built for: {', '.join(built_for())}"]
    return "\n".join(lines)
