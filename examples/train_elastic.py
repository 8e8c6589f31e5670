"""Training that goes on when ranks die and takes new ones in (torch 2.14 or newer).

    python examples/train_elastic.py store                 # one process that only serves the store
    python examples/train_elastic.py --members 4           # four of these, in any order, anywhere
    kill -9 PID                                            # of any of them, at any time
    python examples/train_elastic.py                       # one more, whenever you like

docs/elastic.md explains it. The members agree about who is in through the store (Lobby); taco makes
a group of them (torch.distributed._reconfigure), and whoever has come furthest gives the others
its parameters and the optimizer's state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from train_digits import accuracy, convolutional_net, digits

import taco_torch

PATIENCE_S = 2.0  # for a member that neither died nor comes to the next group
LOOK_EVERY = 5  # steps between two looks at who has arrived


class Lobby:
    """Where the members of the next group find each other: a store that outlives them all."""

    def __init__(self, store: dist.Store, handle: str) -> None:
        self.store, self.handle = store, handle
        self.uuid, self.members = 0, [handle]
        self.admitted = 0  # arrivals that some group has taken in

    def arrived(self) -> int:
        return int(self.store.add("arrivals", 0))

    def arrive(self) -> None:
        """Waits until the members take this rank in."""
        number = self.store.add("arrivals", 1)
        self.store.set(f"arrival/{number}", self.handle)
        self._take(self.store.get(f"admission/{number}"))

    def found(self, count: int) -> None:
        """The first group, of the first so many: the first of them waits for the others."""
        number = self.store.add("arrivals", 1)
        self.store.set(f"arrival/{number}", self.handle)
        if number == 1:
            self.members = []
            self._admit(1, count)
        self._take(self.store.get(f"admission/{number}"))

    def rendezvous_again(self, lost: str | None) -> None:
        """The next group: of those that are left, and of those that have arrived since."""
        self.uuid += 1
        place = self.store.add(f"{self.uuid}/present", 1)
        self.store.set(f"{self.uuid}/present/{place}", self.handle)
        if place == 1:
            expected = [member for member in self.members if member != lost]
            self.members = self._present(self.uuid, expected)
            self._admit(self.uuid, self.arrived())
        key = f"{self.uuid}/members"
        try:
            self.store.wait([key], timedelta(seconds=3 * PATIENCE_S))
        except dist.DistStoreError:  # who was to write it down has died
            return self.rendezvous_again(lost)
        self._take(self.store.get(key))
        if self.handle not in self.members:
            self.arrive()  # too late for this one
        return None

    def _present(self, uuid: int, expected: list[str]) -> list[str]:
        """Those of `expected` that have come, in their old order."""
        end, present = time.monotonic() + PATIENCE_S, {self.handle}
        while set(expected) - present and time.monotonic() < end:
            count = int(self.store.add(f"{uuid}/present", 0))
            for place in range(1, count + 1):
                present.add(self.store.get(f"{uuid}/present/{place}").decode())
            time.sleep(0.001)
        return [member for member in expected if member in present]

    def _admit(self, uuid: int, count: int) -> None:
        """Writes down the group `uuid`, with everybody of the first `count` arrivals."""
        new = range(self.admitted + 1, count + 1)
        members = [*self.members, *(self.store.get(f"arrival/{n}").decode() for n in new)]
        record = json.dumps([uuid, members, count])
        self.store.set(f"{uuid}/members", record)
        for number in new:
            self.store.set(f"admission/{number}", record)

    def _take(self, record: bytes) -> None:
        self.uuid, self.members, self.admitted = json.loads(record)


class Member:
    """A rank: its model, and how far it has come."""

    def __init__(self, lobby: Lobby) -> None:
        torch.manual_seed(0)
        self.lobby, self.step = lobby, 0
        self.model = convolutional_net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.ddp: nn.Module = self.model
        self.arrived = 0

    def enter(self) -> None:
        """The group of lobby.members; everybody goes on from where the first of them is that has
        come furthest."""
        self.ddp = self.model  # the old wrapper is of the old group
        self.arrived = self.lobby.admitted
        dist._reconfigure(self.lobby.uuid, self.lobby.members).wait()
        steps = [torch.zeros((), dtype=torch.long) for _ in self.lobby.members]
        dist.all_gather(steps, torch.tensor(self.step))
        source = max(range(len(steps)), key=lambda rank: int(steps[rank]))
        state = [self.step, self.model.state_dict(), self.optimizer.state_dict()]
        dist.broadcast_object_list(state, group_src=source)
        self.step = state[0]
        self.model.load_state_dict(state[1])
        self.optimizer.load_state_dict(state[2])
        self.ddp = DistributedDataParallel(self.model)

    def train_step(self, images: torch.Tensor, labels: torch.Tensor, batch: int) -> None:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.step))
        mine = order[:batch].chunk(dist.get_world_size())[dist.get_rank()]
        self.optimizer.zero_grad()
        functional.cross_entropy(self.ddp(images[mine]), labels[mine]).backward()
        self.optimizer.step()
        self.step += 1
        if self.step % LOOK_EVERY == 0:
            arrived = torch.tensor(self.lobby.arrived() if dist.get_rank() == 0 else 0)
            dist.broadcast(arrived, group_src=0)
            self.arrived = int(arrived)

    def train(self, steps: int, images: torch.Tensor, labels: torch.Tensor, batch: int) -> None:
        while self.step < steps:
            if self.arrived > self.lobby.admitted:
                self.go_on(None)
            lost = None
            try:
                self.train_step(images, labels, batch)
                continue
            except taco_torch.PeerLostError as error:
                lost = self.lobby.members[error.rank] if error.rank >= 0 else None
                print(f"step {self.step}: {error}", flush=True)
            self.go_on(lost)

    def go_on(self, lost: str | None) -> None:
        """With whoever is there. A rank that dies meanwhile is left out by the next attempt."""
        begin = time.monotonic()
        while True:
            self.lobby.rendezvous_again(lost)
            with contextlib.suppress(taco_torch.TacoError):
                self.enter()
                break
            lost = None
        self.say(f"{time.monotonic() - begin:.3f} s after the last step")

    def say(self, what: str) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        line = f"group {self.lobby.uuid}: rank {rank} of {world} at step {self.step}, {what}"
        print(f"{line} (pid {os.getpid()})", flush=True)


def serve_store(port: int) -> None:
    store = dist.TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False)
    print(f"the store listens on port {store.port}", flush=True)
    while True:
        time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("role", nargs="?", default="member", choices=("member", "store"))
    parser.add_argument("--members", type=int, default=0, help="found the job, with so many")
    parser.add_argument("--host", default="127.0.0.1", help="of the store")
    parser.add_argument("--port", type=int, default=29544)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--batch", type=int, default=96, help="images a step, of all ranks together"
    )
    arguments = parser.parse_args()
    if not hasattr(dist, "_reconfigure"):
        parser.exit(
            1, f"groups change their members from torch 2.14 on; this is {torch.__version__}\n"
        )
    if arguments.role == "store":
        return serve_store(arguments.port)
    torch.set_num_threads(1)
    images, labels, test_images, test_labels = digits(0)
    store = dist.TCPStore(arguments.host, arguments.port, is_master=False, wait_for_workers=False)
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "enable_reconfigure": True}
    dist.init_process_group("taco", store=store, timeout=timedelta(seconds=60), **options)
    lobby = Lobby(dist.PrefixStore("lobby", store), dist._get_reconfigure_handle())
    member = Member(lobby)  # all that takes time comes before anybody waits for this one
    if arguments.members:
        lobby.found(arguments.members)
    else:
        lobby.arrive()
    member.enter()
    member.say("ready")
    member.train(arguments.steps, images, labels, arguments.batch)
    member.say(f"accuracy {accuracy(member.model, test_images, test_labels):.3f}")
    dist.destroy_process_group()
    return None


if __name__ == "__main__":
    main()
