"""scikit-build-core, asked only once everything it needs is there: the backend of pyproject.toml.

The extension is compiled against the torch that is installed, which an isolated build cannot see.
So before anything is fetched or compiled, whoever types `pip install .` reads what is missing and
one line to type, in place of a traceback.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

# As in pyproject.toml: pip would replace an older torch once it has been compiled against. A newer
# one than was tested is tried.
_TORCH = "torch>=2.11"
# The needed packages that a registry has.
_BUILD_CORE, _CMAKE, _NINJA = _PACKAGES = ["scikit-build-core>=0.10", "cmake>=3.22", "ninja"]
_INSTALL = "python -m pip install --no-build-isolation ."
# Where packages lie that build isolation hides.
_SITE = [sysconfig.get_path(name) for name in ("purelib", "platlib")]


class _Need(NamedTuple):
    """A thing that the build does not find, in words, and its provider: a package of a registry,
    or one of Debian's."""

    words: str
    package: str = ""
    debian: str = ""


def _installed(package: str) -> str | None:
    """The version of a package, also of one that build isolation hides."""
    found = metadata.distributions(name=package, path=[*sys.path, *_SITE])
    return next((one.version for one in found), None)


def _numbers(text: str | None) -> tuple[int, int]:
    """The first two numbers of a version; (0, 0) of what has none."""
    found = re.search(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _missing_torch(config_settings: dict[str, Any] | None) -> list[_Need]:
    if (config_settings or {}).get("cmake.define.TACO_TORCHES"):
        return []  # compiled against these, wherever they lie
    version = _installed("torch")
    least = _numbers(_TORCH)
    if version is None or _numbers(version) < least:
        found = f" (found {version})" if version else ""
        return [_Need(f"torch {least[0]}.{least[1]} or newer{found}", _TORCH)]
    if importlib.util.find_spec("torch") is None:
        return [_Need(f"torch (build isolation hides the {version} that is installed)")]
    return []


def _missing_packages() -> list[_Need]:
    """The missing ones of scikit-build-core, CMake and Ninja, which come from a registry's package
    or else from the PATH."""
    missing = []
    if _numbers(_installed("scikit-build-core")) < (0, 10):
        missing.append(_Need("scikit-build-core 0.10 or newer", _BUILD_CORE))
    cmake, seen = shutil.which("cmake"), [_installed("cmake")]
    if cmake:
        command = [cmake, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seen.append(done.stdout)
    if max(map(_numbers, seen)) < (3, 22):
        missing.append(_Need("cmake 3.22 or newer", _CMAKE))
    if not _installed("ninja") and not any(map(shutil.which, ("ninja", "ninja-build", "make"))):
        missing.append(_Need("ninja", _NINJA))
    return missing


def _compiler() -> str | None:
    named = os.environ.get("CXX", "").split()
    names = named[:1] or ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def _has_header(compiler: str | None, header: str) -> bool:
    include = sysconfig.get_path("include")
    if compiler is None:
        return any(Path(place, header).exists() for place in (include, "/usr/include"))
    command = [compiler, f"-I{include}", "-E", "-x", "c++", "-"]
    source = f"#include <{header}>\n"
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return done.returncode == 0


def _missing_for_compiling() -> list[_Need]:
    missing = []
    compiler = _compiler()
    if compiler is None:
        missing.append(_Need("a C++ compiler (g++ 11 or newer, or clang)", debian="g++"))
    if not _has_header(compiler, "Python.h"):
        python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        missing.append(_Need("Python's headers", debian=f"{python}-dev"))
    if not _has_header(compiler, "openssl/hmac.h"):
        missing.append(_Need("OpenSSL's headers", debian="libssl-dev"))
    if not _has_header(compiler, "xxhash.h"):
        missing.append(_Need("xxHash's header", debian="libxxhash-dev"))
    if not _has_header(compiler, "liburing.h"):
        missing.append(_Need("liburing's headers", debian="liburing-dev"))
    return missing


def _missing(config_settings: dict[str, Any] | None) -> list[_Need]:
    return _missing_torch(config_settings) + _missing_packages() + _missing_for_compiling()


def _give_up(missing: list[_Need]) -> NoReturn:
    packages = [shlex.quote(need.package) for need in missing if need.package]
    system = [need for need in missing if need.debian]
    steps, where = [_INSTALL], "In its source folder, type"
    if packages:
        steps.insert(0, f"python -m pip install {' '.join(packages)}")
    if system and shutil.which("apt-get"):
        apt = " ".join(["apt-get install -y --no-install-recommends", *(n.debian for n in system)])
        steps.insert(0, f"sudo {apt}" if os.geteuid() else apt)
    elif system:
        words = ", ".join(need.words for need in system)
        where = f"Install from this system's packages: {words}. Then, in its source folder, type"
    sys.exit(f"""
taco_torch cannot be built here. Missing: {", ".join(need.words for need in missing)}.

{where}

  {" && ".join(steps)}

Without "--no-build-isolation" the build does not see the installed torch, which it compiles
against. docs/troubleshooting.md says more.""")


def _backend(config_settings: dict[str, Any] | None = None) -> ModuleType:
    """scikit-build-core's own; ends the build, with the remedy, where something is missing."""
    missing = _missing(config_settings)
    if missing:
        _give_up(missing)
    from scikit_build_core import build

    return build


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """An isolated build that was given torch (uv can) gets the rest from a registry."""
    if _missing_torch(config_settings):
        _give_up(_missing(config_settings))
    return _PACKAGES


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _PACKAGES[:1]


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    return str(
        _backend(config_settings).prepare_metadata_for_build_wheel(
            metadata_directory, config_settings
        )
    )


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    return str(
        _backend(config_settings).prepare_metadata_for_build_editable(
            metadata_directory, config_settings
        )
    )


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    return str(
        _backend(config_settings).build_wheel(wheel_directory, config_settings, metadata_directory)
    )


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    return str(
        _backend(config_settings).build_editable(
            wheel_directory, config_settings, metadata_directory
        )
    )


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    from scikit_build_core import build

    return str(build.build_sdist(sdist_directory, config_settings))
