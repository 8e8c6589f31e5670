"""The scripts of tools/ in a folder of their own, where programs stand in for what they call."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from checkout import TOP


def write_program(path: Path, text: str) -> None:
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


def with_scripts(folder: Path) -> Path:
    """That folder, with the scripts; set-up and the test programs are stand-ins."""
    shutil.copytree(TOP / "tools", folder / "tools")
    (folder / "build" / "release").mkdir(parents=True)
    (folder / "build" / "release" / "CTestTestfile.cmake").write_text("")
    (folder / ".venv" / "bin").mkdir(parents=True)
    write_program(folder / "tools" / "sanitize.sh", "exit 0\n")
    return folder


def clean_environment() -> dict[str, str]:
    """Without the mark of the test run that this test may itself be part of."""
    return {name: value for name, value in os.environ.items() if name != "TEST_RUN_ID"}
