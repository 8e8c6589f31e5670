"""Messages between two ranks: order, tags, any source, batches."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Ranks, connect, initialise


def ring() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for count in (0, 1, 1000, 3_000_000):
        received = torch.zeros(count)
        request = dist.isend(torch.full((count,), float(rank)), (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        request.wait()
        assert bool((received == (rank - 1) % world).all())


def tags_in_reverse() -> None:
    rank = dist.get_rank()
    if rank == 0:
        requests = [dist.isend(torch.full((50_000,), float(tag)), 1, tag=tag) for tag in range(100)]
        for request in requests:
            request.wait()
    elif rank == 1:
        for tag in reversed(range(100)):
            received = torch.zeros(50_000)
            dist.recv(received, 0, tag=tag)
            assert bool((received == tag).all()), tag


def order_is_kept_within_a_tag() -> None:
    rank = dist.get_rank()
    if rank == 0:
        requests = [dist.isend(torch.tensor([number]), 1, tag=number % 3) for number in range(300)]
        for request in requests:
            request.wait()
    elif rank == 1:
        for tag in range(3):
            for number in range(tag, 300, 3):
                received = torch.zeros(1, dtype=torch.int64)
                dist.recv(received, 0, tag=tag)
                assert received.item() == number


def any_source() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    rounds = 20
    if rank == 0:
        seen: dict[int, int] = dict.fromkeys(range(1, world), 0)
        for _ in range(rounds * (world - 1)):
            received = torch.zeros(2, dtype=torch.int64)
            sender = dist.recv(received)
            assert received[0].item() == sender
            assert received[1].item() == seen[sender], "order per sender"
            seen[sender] += 1
        assert set(seen.values()) == {rounds}
    else:
        for number in range(rounds):
            dist.send(torch.tensor([rank, number]), 0)


def any_source_of_large_messages() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        senders = set()
        for _ in range(world - 1):
            received = torch.zeros(1_000_000)
            sender = dist.recv(received, tag=5)
            assert bool((received == sender).all())
            senders.add(sender)
        assert senders == set(range(1, world))
    else:
        dist.send(torch.full((1_000_000,), float(rank)), 0, tag=5)


def batch() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    received = [torch.zeros(1000 * (peer + 1)) for peer in range(world)]
    operations = []
    for peer in range(world):
        if peer != rank:
            mine = torch.full((1000 * (rank + 1),), float(rank))
            operations.append(dist.P2POp(dist.isend, mine, peer))
            operations.append(dist.P2POp(dist.irecv, received[peer], peer))
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    for peer in range(world):
        assert peer == rank or bool((received[peer] == peer).all())


def strided_messages() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.arange(100.0).reshape(10, 10).t(), 1)
    elif rank == 1:
        received = torch.zeros(10, 20)[:, ::2]
        dist.recv(received, 0)
        torch.testing.assert_close(received, torch.arange(100.0).reshape(10, 10).t())


def object_list() -> None:
    if dist.get_rank() == 2:
        dist.send_object_list([{"a": 1}, "two"], dst=3)
    elif dist.get_rank() == 3:
        received = [None, None]
        dist.recv_object_list(received, src=2)
        assert received == [{"a": 1}, "two"]


def send_beyond_the_group() -> None:
    with pytest.raises(ValueError, match=r"rank"):
        dist.send(torch.zeros(1), dist.get_world_size() + 3)


def any_source_without_rank_2(rank: int, port: int, exchanged: bool, senders: int) -> None:
    """Rank 2 leaves, and rank 1 too where there are no senders; rank 0 receives from any."""
    initialise(rank, 3, port)
    store = connect(port, 3)
    if exchanged:
        dist.barrier()
    if rank > senders:
        dist.destroy_process_group()
        store.set(f"rank {rank} has left", "")
        return
    if rank == 1:
        store.wait(["rank 0 still waits"])
        dist.send(torch.tensor([7]), 0)
    else:
        store.wait([f"rank {gone} has left" for gone in range(senders + 1, 3)])
        received = torch.zeros(1, dtype=torch.int64)
        request = dist.irecv(received)
        for _ in range(20):  # it might fail as soon as rank 2 is missed
            if not request.is_completed():
                time.sleep(0.02)
        store.set("rank 0 still waits", "")
        request.wait()
        assert received.item() == 7
    dist.destroy_process_group()


@taco_only
@pytest.mark.parametrize("exchanged", [True, False])
def test_any_source_goes_on_without_a_rank_that_has_left(transport: str, exchanged: bool) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport}) as ranks:
        arguments = [(rank, ranks.port, exchanged, 1) for rank in range(3)]
        ranks.run_each(any_source_without_rank_2, arguments)


@taco_only
@pytest.mark.parametrize("exchanged", [True, False])
def test_any_source_fails_once_every_other_rank_has_left(transport: str, exchanged: bool) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport}) as ranks:
        for rank in range(3):
            ranks.begin(rank, any_source_without_rank_2, rank, ranks.port, exchanged, 0)
        outcome, *others = ranks.gather(range(3))
        assert all(other.ok for other in others), others
        assert outcome.error_type == "PeerLostError", outcome
        assert "it has left" in outcome.error


def test_a_ring_of_sends(ranks: Ranks) -> None:
    ranks.run(ring)


def test_tags_received_in_reverse_order(ranks: Ranks) -> None:
    ranks.run(tags_in_reverse)


def test_order_is_kept_within_a_tag(ranks: Ranks) -> None:
    ranks.run(order_is_kept_within_a_tag)


def test_any_source_keeps_each_senders_order(ranks: Ranks) -> None:
    ranks.run(any_source)


def test_any_source_of_large_messages(ranks: Ranks) -> None:
    ranks.run(any_source_of_large_messages)


def test_batched_sends_and_receives(ranks: Ranks) -> None:
    ranks.run(batch)


@taco_only
def test_strided_tensors_travel_by_their_elements(ranks: Ranks) -> None:
    ranks.run(strided_messages)


def test_lists_of_objects(ranks: Ranks) -> None:
    ranks.run(object_list)


@taco_only
def test_a_rank_out_of_range_is_a_value_error(ranks: Ranks) -> None:
    ranks.run(send_beyond_the_group)
