"""The commands of the package where their programs were not installed, as after `make demo`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"


def test_a_command_without_its_program_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "taco_torch").mkdir()
    (tmp_path / "taco_torch" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import _taco_torch_commands as all; all.harp_perf()"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SOURCES}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"its program is not there ({tmp_path}/taco_torch/bin/harp-perf)" in done.stderr
    assert "`make build`" in done.stderr
