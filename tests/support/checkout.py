"""The files of this checkout, for the tests that read the repository itself."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@cache
def tracked() -> list[str]:
    """Files of the repository, with those that are new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: no list of files")
    return [name for name in listed.stdout.splitlines() if (TOP / name).is_file()]


def files(*suffixes: str, under: str = "") -> list[str]:
    return [name for name in tracked() if name.endswith(suffixes) and name.startswith(under)]


def text_of(name: str) -> str:
    return (TOP / name).read_text(encoding="utf-8", errors="replace")


def report(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)
