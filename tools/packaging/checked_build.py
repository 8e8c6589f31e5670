"""scikit-build-core, asked only once everything it needs is there: the backend of pyproject.toml.

The extension is compiled against the torch that is installed, which an isolated build cannot see.
So before anything is fetched or compiled, whoever types `pip install .` reads what is missing and
the line to type, in place of a traceback.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from types import ModuleType
from typing import Any, NoReturn

# What a registry has of the needed things.
_PACKAGES = ["scikit-build-core>=0.10", "cmake>=3.22", "ninja"]
_APT = "apt-get install -y --no-install-recommends g++ cmake ninja-build python3-dev libssl-dev"
_REMEDY = f"""
An environment that has torch, and these, is all it takes:

  sudo {_APT}
  python -m pip install scikit-build-core
  python -m pip install --no-build-isolation .

"--no-build-isolation" lets the build see the installed torch. docs/troubleshooting.md says more."""


def _compiler() -> str | None:
    named = os.environ.get("CXX", "").split()
    names = named[:1] or ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def _has_header(compiler: str, header: str) -> bool:
    include = sysconfig.get_path("include")
    command = [compiler, f"-I{include}", "-E", "-x", "c++", "-"]
    source = f"#include <{header}>\n"
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return done.returncode == 0


def _has_program(package: str, *names: str) -> bool:
    """On the PATH, or from a registry beside scikit-build-core, which looks there first."""
    spec = importlib.util.find_spec(package)
    return (spec is not None and spec.origin is not None) or any(map(shutil.which, names))


def _missing() -> list[str]:
    """What the build needs and does not find, in words."""
    missing = []
    if importlib.util.find_spec("torch") is None:
        missing.append("torch 2.11 to 2.14 (hidden by build isolation, or not installed)")
    if importlib.util.find_spec("scikit_build_core") is None:
        missing.append("scikit-build-core")
    if not _has_program("cmake", "cmake"):
        missing.append("cmake 3.22 or newer")
    if not _has_program("ninja", "ninja", "ninja-build", "make"):
        missing.append("ninja")
    compiler = _compiler()
    if compiler is None:
        return [*missing, "a C++ compiler (g++ 11 or newer, or clang)"]
    headers = {"Python.h": "Python's headers", "openssl/hmac.h": "OpenSSL's headers (libssl-dev)"}
    return missing + [name for file, name in headers.items() if not _has_header(compiler, file)]


def _give_up(missing: list[str]) -> NoReturn:
    sys.exit(f"\ntaco_torch cannot be built here. Missing: {', '.join(missing)}.\n{_REMEDY}")


def _backend() -> ModuleType:
    """scikit-build-core's own; ends the build, with the remedy, where something is missing."""
    missing = _missing()
    if missing:
        _give_up(missing)
    from scikit_build_core import build

    return build


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """An isolated build that was given torch (uv can) gets the rest from a registry."""
    if importlib.util.find_spec("torch") is None:
        _give_up(_missing())
    return _PACKAGES


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _PACKAGES[:1]


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    return str(_backend().prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    return str(_backend().prepare_metadata_for_build_editable(metadata_directory, config_settings))


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    return str(_backend().build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    return str(_backend().build_editable(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    from scikit_build_core import build

    return str(build.build_sdist(sdist_directory, config_settings))
