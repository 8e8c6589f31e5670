"""tools/harp.lua shows packets as csrc/harp/session/wire.h has them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from checkout import text_of

ROOT = Path(__file__).parent.parent
DISSECTOR = "tools/harp.lua"
CAMPAIGN = ROOT / "build/release/tests/harp/session/protocol_campaign"


def words(name: str) -> str:
    """kPathChallenge: path challenge."""
    return re.sub(r"(?<!^)([A-Z])", r" \1", name.removeprefix("k")).lower()


def enum(file: str, name: str) -> dict[int, str]:
    """The enumerators of a C++ enum by their values."""
    match = re.search(rf"enum (?:class )?{name}\b[^{{]*{{(.*?)}}", text_of(file), re.DOTALL)
    assert match, name
    found: dict[int, str] = {}
    value = -1
    for line in re.sub(r"//[^\n]*", "", match[1]).split(","):
        if not line.strip():
            continue
        enumerator, _, given = line.partition("=")
        value = int(given) if given else value + 1
        found[value] = words(enumerator.strip())
    return found


def table(name: str, first: int = 0) -> dict[int, str]:
    """A table of names in the dissector."""
    match = re.search(rf"local {name} = {{(.*?)}}", text_of(DISSECTOR), re.DOTALL)
    assert match, name
    keyed = {int(key): text for key, text in re.findall(r'\[(\d+)\] = "([^"]+)"', match[1])}
    plain = re.findall(r'(?<!= )"([^"]+)"', match[1])
    return keyed or dict(enumerate(plain, first))


@pytest.mark.parametrize(
    ("shown", "file", "name"),
    [
        (table("TYPES", 1), "csrc/harp/session/wire.h", "Type"),
        (table("FRAMES"), "csrc/harp/session/wire.h", "Frame"),
        (table("RECORDS"), "csrc/harp/session/wire.h", "RecordType"),
        (table("CONTROLS"), "csrc/harp/control.h", "Kind"),
    ],
)
def test_the_dissector_knows_every_name(shown: dict[int, str], file: str, name: str) -> None:
    assert shown == enum(file, name)


def test_the_dissector_shows_every_byte_of_a_hello() -> None:
    text = text_of(DISSECTOR)
    body = text[text.index("local function add_hello") : text.index("-- Slot and extent")]
    listed = sum(int(size) for size in re.findall(r'{ "\w+", (\d+) }', body))
    # Besides: the flags, security and checksum, what is reserved, the proof.
    assert listed + 1 + 2 + 2 + 16 == 112


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.skipif(not CAMPAIGN.exists(), reason="the simulator is not built")
def test_wireshark_reads_a_trace_of_the_simulator(tmp_path: Path) -> None:
    trace = tmp_path / "seed.pcapng"
    subprocess.run([CAMPAIGN, "--first", "3", "--seeds", "1", "--pcap", trace], check=True)
    done = subprocess.run(
        ["tshark", "-X", f"lua_script:{ROOT / DISSECTOR}", "-r", trace, "-V"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Lua Error" not in done.stdout + done.stderr
    assert "HARP, hello" in done.stdout
    assert "HARP, control" in done.stdout
    assert "Frame: ack (128)" in done.stdout
    assert "Bad checksum" not in done.stdout
