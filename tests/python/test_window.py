"""Windows: memory that other ranks write into (torch 2.14 on). docs/windows.md."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import BACKEND
from spawn_ranks import Outcome, Ranks, initialise

from taco_torch.groups import taco_backend

pytestmark = [
    pytest.mark.skipif(BACKEND != "taco", reason="behaviour that only taco promises"),
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14), reason="torch 2.14 brought it"
    ),
]

DEADLINE_S = 60.0
_kept: dict[str, Any] = {}  # by a rank, from one call to the next


def refused(outcomes: Sequence[Outcome], error_type: str, *words: str) -> None:
    for outcome in outcomes:
        assert outcome.error_type == error_type, outcome
        for word in words:
            assert word in outcome.error, outcome.error


def waiting(seconds: float) -> Any:
    from torch._C._distributed_c10d import WaitSignalOptions

    options = WaitSignalOptions()
    options.timeout = timedelta(seconds=seconds)
    return options


# Puts, signals and waits


def ring_put(count: int, dtype: torch.dtype, async_op: bool, with_tensor: bool) -> list[float]:
    """Each rank puts into the next one's window; as torch's own test of windows does."""
    rank, world = dist.get_rank(), dist.get_world_size()
    source = torch.empty(count, dtype=dtype)
    buffer = torch.ones(count * world, dtype=dtype)
    window = dist._new_window(buffer if with_tensor else None)
    if not with_tensor:
        window.tensor_register(buffer)
    after, before = (rank + 1) % world, (rank - 1) % world
    found = []
    for iteration in range(4):
        source.fill_(rank + iteration * world)
        work = window.put(source, after, after * count, async_op)
        if async_op:
            work.wait()
        work = window.wait_signal(before, async_op)
        if async_op:
            work.wait()
            assert work.is_completed()
            assert work.get_future().done()
        own = window.map_remote_tensor(rank)
        assert own.data_ptr() == buffer.data_ptr()
        assert own.shape == buffer.shape
        received = own[rank * count : (rank + 1) * count]
        assert torch.all(received == before + iteration * world), (iteration, received)
        found.append(float(buffer.double().sum() - received.double().sum()))
        dist.barrier()
    window.tensor_deregister()
    return found


@pytest.mark.parametrize("with_tensor", [False, True])
@pytest.mark.parametrize("async_op", [False, True])
def test_what_is_put_is_there_when_its_signal_is_taken(
    ranks: Ranks, async_op: bool, with_tensor: bool
) -> None:
    for count, dtype in [
        (4, torch.float32),
        (1024, torch.int32),
        (65_536, torch.int8),
        (300_000, torch.float64),
        (100, torch.bfloat16),
    ]:
        untouched = float(count * (ranks.world - 1))  # ones, all but the received part
        found = ranks.run(ring_put, count, dtype, async_op, with_tensor)
        assert found == [[untouched] * 4] * ranks.world


def supports() -> tuple[bool, bool]:
    return dist._supports_window(), taco_backend().supports_window


def test_a_group_says_that_it_has_windows(ranks: Ranks) -> None:
    assert ranks.run(supports) == [(True, True)] * 4


def attributes() -> list[str]:
    window = dist._new_window(torch.zeros(4))
    found = [window.get_attr(rank).access_type.name for rank in range(dist.get_world_size())]
    window.tensor_deregister()
    return found


def test_only_a_ranks_own_window_is_memory_that_it_sees(ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.run(attributes)):
        assert found == ["UNIFIED" if other == rank else "SEPARATE" for other in range(4)]


def three_puts_and_a_signal() -> list[float]:
    rank = dist.get_rank()
    buffer = torch.zeros(100_000)
    window = dist._new_window(buffer)
    if rank == 0:
        works = [
            window.put(torch.full((30_000,), float(i + 1)), 1, i * 30_000, True) for i in range(3)
        ]
        works.append(window.signal(1, True))
        for work in works:
            work.wait()
    if rank == 1:
        for _ in range(4):
            window.wait_signal(0, False)
    found = [float(buffer[i * 30_000 : (i + 1) * 30_000].sum()) for i in range(3)]
    window.tensor_deregister()
    return found


def test_every_put_gives_a_signal_and_a_signal_one_more(ranks: Ranks) -> None:
    found = ranks.run(three_puts_and_a_signal)
    assert found[1] == [30_000.0, 60_000.0, 90_000.0]
    assert found[0] == found[2] == [0.0, 0.0, 0.0]


def put_to_the_last_element() -> tuple[float, float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    dtypes = [torch.float32, torch.float64, torch.int64, torch.uint8]
    buffer = torch.zeros(16 + rank, dtype=dtypes[rank])
    window = dist._new_window(buffer)
    window.put(torch.tensor([before + 10], dtype=dtypes[after]), after, 16 + after - 1, False)
    window.wait_signal(before, False)
    window.tensor_deregister()
    return float(buffer[-1]), float(buffer[:-1].abs().sum())


def test_each_rank_has_a_size_and_a_dtype_of_its_own(ranks: Ranks) -> None:
    assert ranks.run(put_to_the_last_element) == [
        (12.0, 0.0),
        (13.0, 0.0),
        (10.0, 0.0),
        (11.0, 0.0),
    ]


def put_what_is_not_contiguous() -> list[list[float]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    buffer = torch.zeros(2, 3)
    window = dist._new_window(buffer)
    window.put(torch.arange(6.0).view(3, 2).t(), (rank + 1) % world, 0, False)
    window.wait_signal((rank - 1) % world, False)
    window.tensor_deregister()
    return buffer.tolist()


def test_a_source_may_have_any_strides(ranks: Ranks) -> None:
    assert ranks.run(put_what_is_not_contiguous) == [[[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]] * 4


def put_to_oneself() -> list[float]:
    rank = dist.get_rank()
    buffer = torch.zeros(4)
    window = dist._new_window(buffer)
    window.put(torch.tensor([rank + 1.0]), rank, 2, False)
    window.wait_signal(rank, False)
    window.tensor_deregister()
    return buffer.tolist()


def alone() -> list[float]:
    dist.init_process_group("taco", store=dist.HashStore(), rank=0, world_size=1)
    found = put_to_oneself()
    dist.destroy_process_group()
    return found


def test_a_rank_puts_to_itself_also_alone(ranks: Ranks, transport: str) -> None:
    assert ranks.run(put_to_oneself) == [[0.0, 0.0, rank + 1.0, 0.0] for rank in range(4)]
    with Ranks(1, {"TACO_TRANSPORT": transport}) as one:
        assert one.run(alone) == [[0.0, 0.0, 1.0, 0.0]]


def two_windows_of_two_groups() -> tuple[float, float]:
    rank = dist.get_rank()
    pair = dist.new_group([0, 2]), dist.new_group([1, 3])
    first, second = torch.zeros(3), torch.zeros(3)
    of_all = dist._new_window(first)
    of_pair = dist._new_window(second, group=pair[rank % 2])
    other = 1 - rank // 2  # in the pair
    of_pair.put(torch.full((3,), 1.0 + rank), other, 0, False)
    of_all.put(torch.full((3,), 10.0 + rank), (rank + 1) % 4, 0, False)
    of_all.wait_signal((rank - 1) % 4, False)
    of_pair.wait_signal(other, False)
    of_pair.tensor_deregister()
    of_all.tensor_deregister()
    return float(first[0]), float(second[2])


def test_windows_of_several_groups_are_kept_apart(ranks: Ranks) -> None:
    assert ranks.run(two_windows_of_two_groups) == [
        (13.0, 3.0),
        (10.0, 4.0),
        (11.0, 1.0),
        (12.0, 2.0),
    ]


def windows_beside_collectives(rounds: int) -> float:
    """A thread puts and waits while the main thread reduces."""
    rank, world = dist.get_rank(), dist.get_world_size()
    buffer = torch.zeros(50_000)
    window = dist._new_window(buffer)
    wrong: list[int] = []

    def exchange() -> None:
        for i in range(rounds):
            window.put(torch.full((50_000,), float(i)), (rank + 1) % world, 0, False)
            window.wait_signal((rank - 1) % world, False)
            if float(buffer[0]) < i:
                wrong.append(i)

    thread = threading.Thread(target=exchange)
    thread.start()
    total = torch.ones(1000)
    for _ in range(rounds):
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
    thread.join()
    window.tensor_deregister()
    return float(total[0]) + len(wrong)


def test_windows_and_collectives_run_side_by_side(ranks: Ranks) -> None:
    assert ranks.run(windows_beside_collectives, 20) == [1.0] * 4


# Bad input


def make_window(key: str = "window", count: int = 16) -> None:
    _kept["buffer"] = torch.zeros(count)
    _kept[key] = dist._new_window(_kept["buffer"])


def drop_window(key: str = "window") -> None:
    _kept.pop(key).tensor_deregister()


def put(
    rank: int, offset: int, count: int = 1, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> None:
    _kept["window"].put(torch.ones(count, dtype=dtype, device=device), rank, offset, False)


def signal_to(rank: int) -> None:
    _kept["window"].signal(rank, False)


def wait_for(rank: int, seconds: float = 60.0) -> None:
    _kept["window"].wait_signal(rank, False, waiting(seconds))


def map_of(rank: int) -> None:
    _kept["window"].map_remote_tensor(rank)


def test_what_no_window_takes_is_named_and_the_window_goes_on(ranks: Ranks) -> None:
    ranks.run(make_window)

    def ask(*arguments: Any) -> list[Outcome]:
        return ranks.outcomes(put, *arguments)

    refused(ask(1, -1), "RuntimeError", "nonnegative", "-1")
    refused(ask(1, 9, 8), "RuntimeError", "8 elements at offset 9 exceeds the window size", "16")
    refused(ask(1, sys.maxsize), "RuntimeError", "exceeds the window size of rank 1")
    refused(ask(1, 0, 1, torch.int32), "RuntimeError", "does not match", "Int", "Float")
    refused(ask(1, 0, 1, torch.float32, "meta"), "NotImplementedError", "meta")
    for rank in (-1, 4):
        refused(ask(rank, 0), "ValueError", f"rank {rank}", "0 to 3")
        refused(ranks.outcomes(signal_to, rank), "ValueError", f"rank {rank}")
        refused(ranks.outcomes(wait_for, rank), "ValueError", f"rank {rank}")
        refused(ranks.outcomes(map_of, rank), "ValueError", f"rank {rank}")
    for asking in range(4):
        ranks.begin(asking, map_of, (asking + 1) % 4)
    refused(ranks.gather(range(4)), "NotImplementedError", "another process")
    ranks.run(put, 2, 15)
    ranks.run(drop_window)
    ranks.run(ring_put, 100, torch.float32, True, True)


def register_twice() -> None:
    _kept["window"].tensor_register(torch.zeros(4))


def use_before_it_has_a_tensor(operation: str) -> None:
    window = dist._new_window()
    if operation == "put":
        window.put(torch.zeros(1), 0, 0, False)
    elif operation == "signal":
        window.signal(0, False)
    elif operation == "deregister":
        window.tensor_deregister()
    else:
        window.wait_signal(0, False)


def test_a_window_has_one_tensor_at_a_time(ranks: Ranks) -> None:
    for operation in ("put", "signal", "wait", "deregister"):
        refused(
            ranks.outcomes(use_before_it_has_a_tensor, operation), "RuntimeError", "not registered"
        )
    ranks.run(make_window)
    refused(ranks.outcomes(register_twice), "RuntimeError", "double registration")
    ranks.run(drop_window)


def unusable(kind: str) -> torch.Tensor:
    tensor = torch.zeros(4, 6)
    if kind == "strides":
        return tensor.t()
    if kind == "device":
        return torch.zeros(4, device="meta")
    if kind == "sparse":
        return tensor.to_sparse()
    tensor.untyped_storage().resize_(0)
    return tensor


def register_where_one_cannot(kind: str) -> None:
    dist._new_window(unusable(kind) if dist.get_rank() == 2 else torch.zeros(24))


@pytest.mark.parametrize(
    ("kind", "error_type", "word"),
    [
        ("strides", "ValueError", "contiguous"),
        ("device", "NotImplementedError", "meta"),
        ("sparse", "NotImplementedError", "Sparse"),
        ("gone", "ValueError", "its memory is gone"),
    ],
)
def test_a_tensor_that_cannot_be_a_window_is_named_on_all_ranks(
    ranks: Ranks, kind: str, error_type: str, word: str
) -> None:
    outcomes = ranks.outcomes(register_where_one_cannot, kind)
    refused([outcomes[2]], error_type, word)
    refused([outcomes[rank] for rank in (0, 1, 3)], "MismatchError", "rank 2", "cannot be a window")
    ranks.run(ring_put, 100, torch.float32, True, True)


def resize_while_it_is_a_window() -> list[str]:
    """The errors on resizing the storage of a tensor with two windows, with one, and with none."""
    tensor = torch.zeros(24)
    windows = [dist._new_window(tensor), dist._new_window(tensor[:12])]
    found = []
    for left in (2, 1, 0):
        if left < len(windows):
            windows.pop(0).tensor_deregister()
        try:
            tensor.untyped_storage().resize_(0)
            found.append("")
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_memory_cannot_go_while_it_is_a_window(ranks: Ranks) -> None:
    for both, one, none in ranks.run(resize_while_it_is_a_window):
        assert "not resizable" in both
        assert "not resizable" in one
        assert none == ""


def drop_the_tensor() -> float:
    rank, world = dist.get_rank(), dist.get_world_size()
    window = dist._new_window()
    window.tensor_register(torch.zeros(100_000), owning=False)
    window.put(torch.ones(100_000), (rank + 1) % world, 0, False)
    window.wait_signal((rank - 1) % world, False)
    found = float(window.map_remote_tensor(rank).sum())
    window.tensor_deregister()
    return found


def test_the_window_keeps_the_memory_that_others_write_to(ranks: Ranks) -> None:
    assert ranks.run(drop_the_tensor) == [100_000.0] * 4


# Ends


def test_a_signal_that_does_not_come_ends_the_window_and_not_the_group(ranks: Ranks) -> None:
    ranks.run(make_window)
    outcomes = ranks.outcomes(wait_for, 1, 0.3)
    assert all(outcome.error_type == "CollectiveTimeoutError" for outcome in outcomes), outcomes
    assert any("wait_signal of rank 1" in outcome.error for outcome in outcomes), outcomes
    refused(ranks.outcomes(put, 1, 0), "CollectiveTimeoutError", "put to rank 1", "Timed out")
    ranks.outcomes(drop_window)
    ranks.run(ring_put, 100, torch.float32, True, True)


def abort_the_group() -> None:
    taco_backend().abort()


def test_an_abort_ends_waits(transport: str) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        ranks.initialise()
        ranks.run(make_window)
        ranks.begin(0, wait_for, 1)
        ranks.begin(1, abort_the_group)
        outcomes = ranks.gather([0, 1], DEADLINE_S)
        assert outcomes[1].ok, outcomes[1]
        refused([outcomes[0]], "AbortedError", "was aborted on rank 1")


def make_and_exchange(count: int) -> None:
    make_window("window", count)
    rank, world = dist.get_rank(), dist.get_world_size()
    put((rank + 1) % world, 0, count)
    wait_for((rank - 1) % world)


def put_until_it_fails(rank: int, count: int) -> None:
    while True:
        put(rank, 0, count)


@pytest.mark.parametrize("count", [10, 500_000])
def test_a_killed_rank_ends_what_waits_for_it_and_is_named(transport: str, count: int) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        ranks.initialise()
        ranks.run(make_and_exchange, count)
        ranks.begin(0, wait_for, 2)
        ranks.begin(1, put_until_it_fails, 2, count)
        ranks.kill(2)
        for outcome in ranks.gather([0, 1], DEADLINE_S):
            assert outcome.error_type == "PeerLostError", outcome
            assert outcome.fields is not None
            assert outcome.fields["rank"] == 2
            assert outcome.fields["address"]
            assert "rank 2" in outcome.error


def drop_and_look(count: int) -> bool:
    """Drops the window after some puts have come; whether the memory stays as it is left."""
    for _ in range(5):
        wait_for(1)
    buffer = _kept["buffer"]
    del _kept["window"]
    buffer.copy_(torch.arange(float(count)))
    dist.barrier()  # all puts have ended
    return torch.equal(buffer, torch.arange(float(count)))


def put_until_it_is_gone(count: int) -> str:
    found = ""
    while not found:
        try:
            put(0, 0, count)
        except RuntimeError as error:
            found = f"{type(error).__name__}: {error}"
    del _kept["window"]
    dist.barrier()
    return found


@pytest.mark.parametrize("count", [10, 500_000])
def test_nothing_is_written_to_a_window_that_is_destroyed_under_traffic(
    ranks: Ranks, count: int
) -> None:
    ranks.run(make_window, "window", count)
    ranks.begin(0, drop_and_look, count)
    for rank in (1, 2, 3):
        ranks.begin(rank, put_until_it_is_gone, count)
    outcomes = ranks.gather(range(4), DEADLINE_S)
    for outcome in outcomes:
        assert outcome.ok, outcome.trace
    assert outcomes[0].value is True
    for outcome in outcomes[1:]:
        assert "window" in outcome.value
        assert "rank 0" in outcome.value
    ranks.run(ring_put, 100, torch.float32, True, True)


def leave_with_a_window() -> list[float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    buffer = torch.zeros(4)
    window = dist._new_window(buffer)
    window.put(torch.full((4,), float(rank)), (rank + 1) % world, 0, False)
    window.wait_signal((rank - 1) % world, False)
    dist.destroy_process_group()
    found = buffer.tolist()
    with pytest.raises(RuntimeError, match=r"window 0.*closed"):
        window.signal(0, False)
    return found


def test_a_group_is_destroyed_with_its_windows(transport: str) -> None:
    with Ranks(2, {"TACO_TRANSPORT": transport}) as ranks:
        ranks.initialise()
        assert ranks.run(leave_with_a_window, deadline_s=DEADLINE_S) == [[1.0] * 4, [0.0] * 4]
        assert ranks.close() == [0, 0]


def regroup(uuid: int, handles: list[str]) -> None:
    dist._reconfigure(uuid, handles, timeout=timedelta(seconds=30)).wait()


def join_apart(rank: int, world: int, port: int) -> str:
    initialise(rank, world, port, enable_reconfigure=True)
    return dist._get_reconfigure_handle()


def test_windows_go_on_in_a_group_that_has_lost_a_rank(transport: str) -> None:
    with Ranks(3, {"TACO_TRANSPORT": transport, "TACO_LOG": "error"}) as ranks:
        handles = ranks.run_each(join_apart, [(rank, 3, ranks.port) for rank in range(3)])
        ranks.run(regroup, 1, handles)
        ranks.run(make_and_exchange, 1000)
        ranks.kill(1)
        survivors = [0, 2]
        for rank in survivors:
            ranks.begin(rank, wait_for, 1)
        refused(ranks.gather(survivors, DEADLINE_S), "PeerLostError", "rank 1")
        for function, arguments in (
            (regroup, (2, [handles[0], handles[2]])),
            (ring_put, (1000, torch.float32, True, True)),
        ):
            for rank in survivors:
                ranks.begin(rank, function, *arguments)
            for outcome in ranks.gather(survivors, DEADLINE_S):
                assert outcome.ok, outcome.trace
