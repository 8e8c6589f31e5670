"""Two hosts started by torchrun, with each of its rendezvous backends, on hosts whose own names
nobody can resolve."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import taco_only
from fabric import MASTER_PORT, Fabric
from hosts import needs_hosts
from torchrun import command, write_resuming_job

pytestmark = [taco_only, needs_hosts]

# Names of their own, as fresh cloud machines have them: neither DNS nor /etc/hosts knows them.
UNRESOLVABLE = ["unshare", "--uts", "sh", "-c", 'hostname "no-such-host-$0" && exec "$@"']

SUM = textwrap.dedent("""
    import os, socket, torch, torch.distributed as dist, taco_torch
    try:
        socket.getaddrinfo(socket.gethostname(), None)
        raise SystemExit("this test needs a host whose name does not resolve")
    except socket.gaierror:
        pass
    dist.init_process_group("taco")
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((100_000,), float(rank))
    dist.all_reduce(tensor)
    assert bool((tensor == world * (world - 1) / 2).all())
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} of {world} is done")
""")


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2) as made:
        yield made


def torchrun(
    fabric: Fabric, script: Path, arguments: Sequence[Sequence[str]], per_host: int = 1
) -> str:
    """Runs torchrun with its own arguments on every host; what all of them print."""
    agents = []
    for host, own in enumerate(arguments):
        launch = command(script, f"--nnodes={fabric.hosts}", *own, ranks=per_host)
        agents.append(
            fabric.popen(
                host,
                [*UNRESOLVABLE, str(host), *launch],
                cwd=script.parent,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [""] * len(agents)
    with contextlib.ExitStack() as stack:
        for agent in agents:
            stack.callback(agent.send_signal, signal.SIGTERM)
        for host, agent in enumerate(agents):
            outputs[host] = agent.communicate(timeout=90)[0]
    text = "\n".join(f"host {host}:\n{output}" for host, output in enumerate(outputs))
    assert all(agent.returncode == 0 for agent in agents), text
    return text


def test_static_rendezvous(fabric: Fabric, tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    static = ["--rdzv-backend=static", f"--master-addr={fabric.address(0)}"]
    static += [f"--master-port={MASTER_PORT}"]
    text = torchrun(fabric, script, [[*static, f"--node-rank={host}"] for host in range(2)], 2)
    assert all(f"rank {rank} of 4 is done" in text for rank in range(4)), text


@pytest.mark.whole(instead="test_static_rendezvous")
def test_static_rendezvous_over_ipv6(fabric: Fabric, tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    for host in range(2):
        fabric.output(host, ["ip", "-4", "addr", "flush", "dev", "eth0"])
    static = ["--rdzv-backend=static", f"--master-addr={fabric.address6(0)}"]
    static += [f"--master-port={MASTER_PORT}"]
    text = torchrun(fabric, script, [[*static, f"--node-rank={host}"] for host in range(2)])
    assert all(f"rank {rank} of 2 is done" in text for rank in range(2)), text


@pytest.mark.whole(instead="test_static_rendezvous")
def test_c10d_rendezvous_and_a_restart_after_a_death(fabric: Fabric, tmp_path: Path) -> None:
    script = write_resuming_job(tmp_path)
    c10d = ["--rdzv-backend=c10d", f"--rdzv-endpoint={fabric.address(0)}:{MASTER_PORT}"]
    c10d += ["--rdzv-id=job", "--max-restarts=2"]
    # torchrun itself would look up the hosts' names, unless told both of these.
    known = [
        [f"--rdzv-conf=is_host={int(host == 0)}", f"--local-addr={fabric.address(host)}"]
        for host in range(2)
    ]
    text = torchrun(fabric, script, [[*c10d, *known[host]] for host in range(2)])
    assert all(
        re.search(rf"rank {rank} finished on attempt \d+ from step 10", text) for rank in range(2)
    ), text
