"""Ranks of a test that stand on different hosts of an emulated network.

    with Fabric(hosts=3) as fabric, host_ranks(fabric) as ranks:
        ranks.run_each(join, [(rank, ...) for rank in range(3)])

A rank is forked from the server that has imported torch already, as all of spawn_ranks' are, and
then moves into its host: milliseconds, where starting Python there would take seconds.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from fabric import MASTER_PORT, Fabric, why_unavailable
from spawn_ranks import Ranks

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC, MS_SLAVE, MNT_DETACH = 0x4000, 0x80000, 2

_reason = why_unavailable()
needs_hosts = pytest.mark.skipif(_reason is not None, reason=f"no fabric here: {_reason}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def enter_host(namespace: str) -> None:
    """Moves the calling process, which must have one thread only, into a network namespace, with
    the namespace's own /sys, so that it reads its own interfaces there."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    _checked(libc.setns(descriptor, CLONE_NEWNET), "setns")
    os.close(descriptor)
    _checked(libc.unshare(CLONE_NEWNS), "unshare")
    _checked(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount /")
    libc.umount2(b"/sys", MNT_DETACH)
    _checked(libc.mount(b"none", b"/sys", b"sysfs", 0, None), "mount /sys")


def host_ranks(
    fabric: Fabric,
    environment: Mapping[str, str] | None = None,
    ranks_per_host: int | Sequence[int] = 1,
    own: Sequence[Mapping[str, str]] | None = None,
    family: int = 4,
) -> Ranks:
    """Ranks in host order, in torchrun's environment; ``ranks_per_host`` is how many there are on
    each, or by host, ``own`` adds variables by rank, ``family`` is the IP version of MASTER_ADDR,
    which is host 0's."""
    if isinstance(ranks_per_host, int):
        ranks_per_host = [ranks_per_host] * fabric.hosts
    places = [(host, local) for host, ranks in enumerate(ranks_per_host) for local in range(ranks)]
    world = len(places)
    environments = []
    for rank, (host, local) in enumerate(places):
        variables = fabric.rank_environment(rank)
        variables |= {
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(ranks_per_host[host]),
            "GROUP_RANK": str(host),
        }
        if family == 6:
            variables["MASTER_ADDR"] = fabric.address6(0)
        variables["TACO_LOG"] = "error"
        variables.update(environment or {})
        if own is not None:
            variables.update(own[rank])
        environments.append(variables)
    doors = [functools.partial(enter_host, fabric.namespace(host)) for host, _ in places]
    return Ranks(world, own=environments, enter=doors)


def sent_by(fabric: Fabric, host: int, link: int) -> int:
    """Bytes that have left a host by this link."""
    path = f"/sys/class/net/eth{link}/statistics/tx_bytes"
    return int(fabric.output(host, ["cat", path]))


def join(timeout_s: float = 30.0, offset: int = 0) -> None:
    """Joins the default group as a program under torchrun does. Rank 0 holds the store, so a test
    that joins again takes another port by ``offset``."""
    import taco_torch  # noqa: F401

    os.environ["MASTER_PORT"] = str(MASTER_PORT + offset)
    dist.init_process_group("taco", timeout=timedelta(seconds=timeout_s))


def total(count: int = 1000) -> float:
    tensor = torch.ones(count)
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all())
    return float(tensor[0])
