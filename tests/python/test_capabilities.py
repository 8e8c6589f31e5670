"""Processes with just the capabilities that the manifests of deploy/kubernetes grant: harp-setup
finds the rights that it looks for, and two ranks on two hosts train; without one of them not.

The rights are taken away from a process of root's, which then has less than an ordinary user of the
same capabilities. Its memory limit is that of a container.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from checkout import TOP
from conftest import taco_only
from fabric import Fabric, wait_all
from hosts import needs_hosts
from kubernetes_schemas import pod_templates
from strict_schema import documents

pytestmark = [taco_only, needs_hosts]

SETUP = str(Path(sys.executable).with_name("harp-setup"))
# As <linux/capability.h> numbers them.
NUMBERS = {"NET_ADMIN": 12, "NET_RAW": 13, "IPC_LOCK": 14, "SYS_ADMIN": 21, "BPF": 39}
SUM = textwrap.dedent("""
    import torch, torch.distributed as dist, taco_torch
    dist.init_process_group("taco")
    tensor = torch.full((300_000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == 3).all())
    dist.barrier()
    dist.destroy_process_group()
    print("two ranks have summed", flush=True)
""")


def granted(manifest: str) -> list[str]:
    """The capabilities that the containers of a manifest are given."""
    found: list[str] = []
    for document in documents((TOP / "deploy/kubernetes" / manifest).read_text()):
        for pod in pod_templates(document):
            for container in pod["spec"]["containers"]:
                found += container["securityContext"]["capabilities"].get("add", [])
    return found


def with_only(capabilities: Sequence[str]) -> list[str]:
    """Before a command: all that it may ever have."""
    keep = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)])
    own = [f"--inh-caps={keep}", f"--bounding-set={keep}", "--no-new-privs"]
    return ["prlimit", "--memlock=65536:65536", "setpriv", *own]


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2) as made:
        yield made


def said(fabric: Fabric, *command: str) -> str:
    """The output of a command on host 0, whatever its status."""
    with subprocess.Popen(
        fabric.command(0, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        return process.communicate(timeout=60)[0]


def check(fabric: Fabric, capabilities: Sequence[str], *options: str) -> str:
    return said(fabric, *with_only(capabilities), SETUP, "--check", "--conf", "none.conf", *options)


def sum_of_two(fabric: Fabric, folder: Path, before: Sequence[str], **variables: str) -> str:
    """The output of two ranks, one on each host, that sum a tensor."""
    script, log = folder / "sum.py", folder / "log"
    script.write_text(SUM)
    variables = {"TACO_LOG": "info", **variables}
    with log.open("w") as file:
        command = [*before, sys.executable, str(script)]
        ranks = fabric.launch(command, environment=variables, stdout=file, stderr=file)
        status = wait_all(ranks, 120)
    text = log.read_text()
    assert status == 0, text[-3000:]
    assert text.count("two ranks have summed") == 2
    return text


@pytest.mark.parametrize("capabilities", [[], ["NET_ADMIN", "BPF"]], ids=["none", "two"])
def test_a_process_has_what_it_is_given_and_no_more(
    fabric: Fabric, capabilities: list[str]
) -> None:
    text = said(fabric, *with_only(capabilities), "cat", "/proc/self/status")
    for field in ("CapPrm", "CapEff", "CapBnd"):
        found = re.search(rf"^{field}:\s*(\w+)$", text, re.MULTILINE)
        assert found is not None
        assert int(found[1], 16) == sum(1 << NUMBERS[name] for name in capabilities), field


@pytest.mark.parametrize("manifest", ["mpijob.yaml", "trainjob.yaml"])
def test_the_kernel_s_udp_needs_no_capability(manifest: str) -> None:
    assert granted(manifest) == []


def test_without_any_capability_harp_setup_misses_nothing(fabric: Fabric) -> None:
    """Things that the host itself lacks, it lacks for root, too."""
    with_all = said(fabric, SETUP, "--check", "--conf", "none.conf")
    assert "network" in with_all
    assert check(fabric, []) == with_all


def test_two_ranks_train_without_any_capability(fabric: Fabric, tmp_path: Path) -> None:
    sum_of_two(fabric, tmp_path, with_only([]))


@pytest.fixture
def xdp(fabric: Fabric) -> list[str]:
    """The capabilities that a manifest grants for AF_XDP, where root could use it."""
    text = said(fabric, SETUP, "--check", "--conf", "none.conf", "--set", "driver=xdp")
    wanting = [line for line in text.splitlines() if re.match(r"WANTING (kernel|rights)", line)]
    if wanting:
        pytest.skip(f"no AF_XDP here: {wanting[0]}")
    return granted("trainjob-xdp.yaml")


def test_harp_setup_finds_the_rights_that_xdp_is_granted(fabric: Fabric, xdp: list[str]) -> None:
    assert len(xdp) == 4
    text = check(fabric, xdp, "--set", "driver=xdp")
    assert re.search(r"^ok +rights ", text, re.MULTILINE), text
    assert re.search(r"^ok +locked memory ", text, re.MULTILINE), text


@pytest.mark.parametrize("missing", ["NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK"])
def test_harp_setup_names_a_capability_that_is_not_there(
    fabric: Fabric, xdp: list[str], missing: str
) -> None:
    assert missing in xdp
    left = [name for name in xdp if name != missing]
    text = check(fabric, left, "--set", "driver=xdp")
    if missing == "IPC_LOCK":
        assert re.search(r"^WANTING +locked memory +64 KiB at most", text, re.MULTILINE), text
    else:
        assert f"this user lacks CAP_{missing}\n" in text


def test_two_ranks_train_over_xdp_with_what_it_is_granted(
    fabric: Fabric, xdp: list[str], tmp_path: Path
) -> None:
    text = sum_of_two(fabric, tmp_path, with_only(xdp), TACO_HARP_DRIVER="xdp", TACO_IFNAME="eth0")
    assert len(re.findall(r"xdp on eth0: \w+, ", text)) == 2, text[-3000:]
