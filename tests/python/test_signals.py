"""Python's handlers of signals run while a rank waits."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from types import FrameType

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks, connect


def heard_while_waiting(port: int) -> None:
    """Rank 1 comes only once the handler has run on rank 0, which waits for it."""
    store = connect(port, dist.get_world_size())
    tensor = torch.ones(1)
    if dist.get_rank() == 0:
        before = signal.signal(signal.SIGUSR1, lambda *_: store.set("heard", ""))
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        dist.all_reduce(tensor)
        signal.signal(signal.SIGUSR1, before)
    else:
        store.wait(["heard"], timedelta(seconds=30))
        dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()
    dist.barrier()
    store.delete_key("heard")


def interrupted(port: int) -> None:
    """An exception of the handler ends the wait, and nothing else: the operation goes on."""
    store = connect(port, dist.get_world_size())
    tensor = torch.ones(1)
    if dist.get_rank() == 0:

        def stop(_number: int, _frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, stop)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        work = dist.all_reduce(tensor, async_op=True)
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            work.wait()
        assert time.monotonic() - begun < 20
        signal.signal(signal.SIGUSR1, before)
        store.set("stopped", "")
        work.wait()
    else:
        store.wait(["stopped"], timedelta(seconds=30))
        dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()
    dist.barrier()
    store.delete_key("stopped")


@taco_only
def test_a_handler_runs_while_its_rank_waits(three: Ranks) -> None:
    three.run(heard_while_waiting, three.port)


@taco_only
def test_a_handler_that_raises_ends_the_wait(three: Ranks) -> None:
    three.run(interrupted, three.port)
