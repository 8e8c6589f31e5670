"""NCCL itself, as it is packaged, loads the plugin, asks it for devices and lets it go: none
of this needs a GPU. tests/cuda/test_nccl_plugin.py has the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from load_net import NO_SYMBOLS
from nccl_files import HOW_TO_GET, find_nccls, find_plugin

PLUGIN = find_plugin()
NCCLS = find_nccls()

pytestmark = [
    pytest.mark.skipif(PLUGIN is None, reason="the plugin for NCCL is neither built nor installed"),
    pytest.mark.skipif(not NCCLS, reason=f"no libnccl.so.2 here: {HOW_TO_GET}"),
]


def load(nccl: Path, **environment: str) -> tuple[int, str]:
    """The version of NCCL, and all that it and the plugin have said."""
    variables = {
        "NCCL_NET_PLUGIN": str(PLUGIN),
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("load_net.py"), nccl],
        env={**os.environ, **variables, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    if done.returncode == NO_SYMBOLS:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    version = re.search(r"^version (\d+)$", done.stdout, re.MULTILINE)
    assert version is not None, done.stdout
    return int(version[1]), done.stdout


def table_of(version: int) -> str:
    """The newest table that this NCCL asks for and the plugin has."""
    if version >= 23000:
        return "v12"
    return "v11" if version >= 22800 else "v10"


@pytest.mark.parametrize("nccl", NCCLS, ids=str)
def test_nccl_takes_the_newest_table_that_both_know(nccl: Path) -> None:
    version, said = load(nccl)
    assert f"Loaded net plugin HARP ({table_of(version)})" in said, said


@pytest.mark.parametrize("nccl", NCCLS, ids=str)
def test_nccl_finds_a_device_and_gives_the_plugin_to_the_communicator(nccl: Path) -> None:
    version, said = load(nccl)
    assert "NET/HARP : HARP sends by" in said, said  # the plugin's own line, by NCCL's logger
    assert "NET/Socket" not in said, said
    if version >= 22700:
        assert "Initialized NET plugin HARP" in said, said
        assert "Assigned NET plugin HARP to comm" in said, said
