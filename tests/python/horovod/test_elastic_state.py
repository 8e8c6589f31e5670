"""States of elastic training in one process: what is kept, given back, and when it starts again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import taco_torch.horovod as hvd
from taco_torch.horovod.elastic import (
    ElasticSampler,
    HostUpdateResult,
    ObjectState,
    TorchState,
    run,
    run_fn,
    running,
)


@pytest.fixture
def alone() -> Iterator[None]:
    """A world of this process."""
    hvd.init()
    yield
    hvd.shutdown()


def state_of(**values: Any) -> ObjectState:
    return ObjectState(bcast_object=lambda value: value, get_rank=lambda: 0, **values)


def test_a_state_goes_back_to_its_last_commit() -> None:
    state = state_of(batch=1, losses=[1.0])
    state.batch = 2
    state.losses.append(2.0)
    state.restore()
    assert (state.batch, state.losses) == (1, [1.0])
    state.batch = 3
    state.losses.append(3.0)
    state.commit()
    state.batch = 4
    state.losses.append(4.0)
    state.restore()
    assert (state.batch, state.losses) == (3, [1.0, 3.0])
    state.losses.append(5.0)
    state.restore()
    assert state.losses == [1.0, 3.0], "what was restored is a copy, too"


def test_a_state_becomes_rank_0_s() -> None:
    state = ObjectState(bcast_object=lambda _: {"batch": 9}, get_rank=lambda: 1, batch=1)
    state.sync()
    assert state.batch == 9
    state.batch = 10
    state.restore()
    assert state.batch == 9


@pytest.mark.parametrize(
    ("updates", "skips"),
    [
        ([HostUpdateResult.added], False),
        ([HostUpdateResult.removed], True),
        ([HostUpdateResult.removed, HostUpdateResult.added], False),
    ],
)
def test_changed_hosts_interrupt_at_the_next_commit(updates: list[int], skips: bool) -> None:
    state = state_of(batch=1)
    state.commit()
    for at, update in enumerate(updates):
        state.on_hosts_updated(float(at + 1), update)
    state.batch = 2
    with pytest.raises(hvd.HostsUpdatedInterrupt) as raised:
        state.commit()
    assert raised.value.skip_sync is skips
    state.restore()
    assert state.batch == 2, "it was saved before"
    state.commit()  # once is enough


def test_old_news_interrupts_nobody() -> None:
    state = state_of(batch=1)
    state.on_hosts_updated(2.0, HostUpdateResult.added)
    with pytest.raises(hvd.HostsUpdatedInterrupt):
        state.check_host_updates()
    state.on_hosts_updated(1.0, HostUpdateResult.added)
    state.check_host_updates()


def test_rank_0_s_word_counts() -> None:
    state = ObjectState(bcast_object=lambda _: (0, 5, 2), get_rank=lambda: 1, batch=1)
    with pytest.raises(hvd.HostsUpdatedInterrupt):
        state.check_host_updates()


class Told(ObjectState):
    """Notes what is asked of it."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__(bcast_object=lambda value: value, get_rank=lambda: 0)
        self.__dict__["calls"] = calls

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")


def test_a_function_starts_again_after_a_loss_and_after_a_change_of_hosts() -> None:
    calls: list[str] = []
    errors = [
        hvd.HorovodInternalError("lost"),
        hvd.HostsUpdatedInterrupt(False),
        hvd.HostsUpdatedInterrupt(True),
    ]

    def train(state: Told, argument: int, named: int = 0) -> tuple[int, int]:
        calls.append("train")
        if errors:
            raise errors.pop(0)
        return argument, named

    state = Told(calls)
    state.register_reset_callbacks([lambda: calls.append("callback")])
    wrapped = run_fn(train, lambda: calls.append("reset"))
    assert wrapped(state, 1, named=2) == (1, 2)
    again = ["reset", "callback"]
    assert calls == [
        *("sync", "train", "restore", *again),
        *("sync", "train", *again),
        *("sync", "train", *again),  # only hosts that have gone: nobody needs the state
        "train",
    ]


@pytest.mark.parametrize("come", [False, True])
def test_newcomers_get_the_state_though_hosts_have_only_gone(
    monkeypatch: pytest.MonkeyPatch, come: bool
) -> None:
    calls: list[str] = []
    errors = [hvd.HostsUpdatedInterrupt(True)]

    def train(state: Told) -> None:
        calls.append("train")
        if errors:
            raise errors.pop()

    def meet_again() -> None:
        monkeypatch.setenv("TACORUN_HAS_NEWCOMERS", str(int(come)))

    monkeypatch.setattr(running, "_meet_again", meet_again)
    run_fn(train, meet_again)(Told(calls))
    assert calls == ["sync", "train", *(["sync"] if come else []), "train"]


def test_other_errors_pass() -> None:
    @run
    def train(state: ObjectState) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        train(state_of())


def test_without_tacorun_a_loss_is_final_and_says_how_it_would_not_be() -> None:
    @run
    def train(state: ObjectState) -> None:
        raise hvd.HorovodInternalError("rank 3 is lost")

    with pytest.raises(hvd.HorovodInternalError, match=r"rank 3 is lost\n.*tacorun --min-np"):
        train(state_of())


# States of torch


def test_models_optimizers_and_schedulers_go_back_too(alone: None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        scheduler.step()

    state = TorchState(model, optimizer, scheduler=scheduler, batch=0)
    step()
    state.batch = 1
    state.commit()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    momentum = [s["momentum_buffer"].clone() for s in optimizer.state.values()]
    rate = optimizer.param_groups[0]["lr"]
    step()
    state.batch = 2
    state.restore()
    assert state.model is model
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    for before, after in zip(momentum, optimizer.state.values(), strict=True):
        assert torch.equal(before, after["momentum_buffer"])
    assert optimizer.param_groups[0]["lr"] == rate
    assert scheduler.last_epoch == 1
    assert state.batch == 1
    state.sync()
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


def test_a_value_that_is_replaced_is_saved(alone: None) -> None:
    state = TorchState(torch.nn.Linear(2, 2))
    other = torch.nn.Linear(3, 3)
    state.model = other
    before = other.weight.detach().clone()
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert torch.equal(other.weight, before)
    assert state.optimizer is None


class World:
    """Some ranks, of which this process plays one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def be(self, rank: int, size: int) -> None:
        module = "taco_torch.horovod.elastic.sampler"
        self._patch.setattr(f"{module}.rank", lambda: rank)
        self._patch.setattr(f"{module}.size", lambda: size)

    def shares(self, sampler: ElasticSampler, size: int) -> list[list[int]]:
        found = []
        for rank in range(size):
            self.be(rank, size)
            sampler.reset()
            assert len(sampler) == len(list(sampler))
            found.append(list(sampler))
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(monkeypatch)
    made.be(0, 1)
    return made


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_share_an_epoch_out(world: World, size: int, shuffle: bool) -> None:
    sampler = ElasticSampler(range(23), shuffle=shuffle, seed=4)
    shares = world.shares(sampler, size)
    assert len({len(share) for share in shares}) == 1
    assert set().union(*shares) == set(range(23))
    assert sum(map(len, shares)) < 23 + size


def test_what_was_processed_is_not_processed_again_in_another_world(world: World) -> None:
    sampler = ElasticSampler(range(40), seed=1)
    shares = world.shares(sampler, 4)
    done = set().union(*(share[:6] for share in shares))
    for batch in range(3):
        sampler.record_batch(batch, 2)
    kept = sampler.state_dict()
    world.be(0, 3)
    other = ElasticSampler(range(40), seed=1)
    other.load_state_dict(kept)
    rest = set().union(*world.shares(other, 3))
    assert rest == set(range(40)) - done
    other.set_epoch(1)
    assert set().union(*world.shares(other, 3)) == set(range(40))


def test_an_epoch_of_fewer_samples_than_ranks_goes_round(world: World) -> None:
    sampler = ElasticSampler(range(2), shuffle=False)
    assert world.shares(sampler, 5) == [[0], [1], [0], [1], [0]]


def test_an_epoch_that_is_done_has_nothing_left(world: World) -> None:
    sampler = ElasticSampler(range(4), shuffle=False)
    sampler.record_batch(0, 4)
    assert world.shares(sampler, 3) == [[], [], []]
