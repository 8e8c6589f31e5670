"""Checkpoints and state dicts of caches that share an optimizer's state, and ranks that die."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from spawn_ranks import Pool, Ranks, wait_for_all
from torch import nn
from zerocache_models import TinyGPT, assert_same_state, make_cache
from zerocache_ranks import (
    CAPS,
    adafactor,
    adamw,
    alone,
    names_of,
    own_batches,
    refused,
    shared,
    train,
    train_beside,
)

pytestmark = taco_only


@pytest.fixture(params=["gloo-2", "taco-3"])
def job(request: pytest.FixtureRequest, jobs: Pool) -> Ranks:
    backend, world = str(request.param).split("-")
    return jobs.get(backend, int(world))


class Counting(TinyGPT):
    """With a buffer, which DistributedDataParallel takes from rank 0."""

    def __init__(self) -> None:
        super().__init__(2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(tokens)


def save_and_go_on(folder: str, saved: str, make: Any = adamw) -> list[float]:
    (cache, model, optimizer), data = shared(folder, Counting(), make), own_batches()
    train(model, optimizer, 3, data)
    assert cache.save(saved, {"epoch": 3}) == 1
    expected = train(model, optimizer, 3, data)
    assert cache.load(saved) == {"epoch": 3}
    assert model.module.calls == 3
    data = own_batches()
    for _ in range(3):
        next(data)
    assert train(model, optimizer, 3, data) == expected
    values = {name: cache.full(name) for name in names_of(model)}
    cache.close()
    torch.save(values, Path(folder) / f"values-{dist.get_rank()}.pt")
    return expected


def load_and_go_on(folder: str, saved: str, expected: list[float], make: Any) -> None:
    (cache, model, optimizer), data = shared(folder, Counting(), make), own_batches()
    train(model, optimizer, 1, own_batches())
    cache.load(saved)
    for _ in range(3):
        next(data)
    found = train(model, optimizer, 3, data)
    assert not expected or found == expected
    cache.close()


@pytest.mark.parametrize("make", [adamw, adafactor])
def test_training_goes_on_from_a_checkpoint_to_the_same_bits(
    job: Ranks, tmp_path: Path, make: Any
) -> None:
    expected = job.run(save_and_go_on, str(tmp_path), str(tmp_path / "saved"), make)
    first = torch.load(tmp_path / "values-0.pt")
    for rank in range(1, job.world):
        other = torch.load(tmp_path / f"values-{rank}.pt")
        assert all(torch.equal(first[name], other[name]) for name in first)
    arguments = [(str(tmp_path), str(tmp_path / "saved"), losses, make) for losses in expected]
    job.run_each(load_and_go_on, arguments)


def state_in(folder: str, saved: str, to: int, make: Any) -> dict[str, Any]:
    """The contents of a checkpoint, by consolidated state."""
    cache, model, optimizer = shared(folder, Counting(), make)
    cache.load(saved)
    optimizer.consolidate_state_dict(to)
    found = optimizer.state_dict() if dist.get_rank() == to else {}
    values = {name: cache.full(name) for name in names_of(model)}
    cache.close()
    torch.save([found, values], Path(folder) / f"state-{dist.get_rank()}.pt")
    return {}


def assert_equal(one: torch.Tensor, other: torch.Tensor) -> None:
    assert torch.equal(one, other)


@pytest.mark.parametrize("make", [adamw, adafactor])
def test_any_number_of_ranks_loads_what_others_saved(jobs: Pool, tmp_path: Path, make: Any) -> None:
    """Two save, three and one load; one saves, two load."""
    saved = str(tmp_path / "saved")
    jobs.get("taco", 2).run(save_and_go_on, str(tmp_path), saved, make)
    for world, to in ((2, 1), (3, 2)):
        jobs.get("taco", world).run(state_in, str(tmp_path), saved, to, make)
        found = torch.load(tmp_path / f"state-{to}.pt")
        model = Counting()
        cache = make_cache(tmp_path / "one", *CAPS)
        model, optimizer = cache.wrap(model, make(model))
        cache.load(saved)
        values = {name: cache.full(name) for name in names_of(model)}
        assert_same_state([optimizer.state_dict(), values], found, assert_equal)
        saved = str(tmp_path / "by-one")
        cache.save(saved)
        cache.close()


def consolidate(folder: str) -> None:
    ours, theirs = shared(folder, TinyGPT(2), adamw), alone(folder, TinyGPT(2), adamw)
    (cache, model, optimizer), (_, _, other) = ours, theirs
    train_beside(ours, theirs, 2)
    for look in (optimizer.state_dict, lambda: optimizer.state[model.module.norm.weight]):
        with pytest.raises(RuntimeError, match=r"call consolidate_state_dict\(to=rank\)"):
            look()
    assert len(optimizer.state) == len(other.state)
    with pytest.raises(ValueError, match="to=7 must be a rank of"):
        optimizer.consolidate_state_dict(to=7)
    for to in (0, 1):
        optimizer.consolidate_state_dict(to=to)
        if dist.get_rank() == to:
            assert_same_state(optimizer.state_dict(), other.state_dict(), assert_equal)
        else:
            with pytest.raises(RuntimeError, match="is dealt out among"):
                optimizer.state_dict()
    # Until the next step.
    train_beside(ours, theirs, 1)
    with pytest.raises(RuntimeError, match="is dealt out among"):
        optimizer.state_dict()
    # All ranks take the whole, as that of plain torch.
    state = other.state_dict()
    values = {name: theirs[0].full(name) for name in names_of(model)}
    train_beside(ours, theirs, 2)
    for each_cache, each in ((cache, optimizer), (theirs[0], other)):
        each.load_state_dict(state)
        for name, value in values.items():
            each_cache.full(name, value)
    train_beside(ours, theirs, 2)
    optimizer.consolidate_state_dict(to=1)
    if dist.get_rank() == 1:
        assert_same_state(optimizer.state_dict(), other.state_dict(), assert_equal)


def test_state_can_be_brought_together_on_one_rank(job: Ranks, tmp_path: Path) -> None:
    job.run(consolidate, str(tmp_path))


def wrap_trained(folder: str) -> None:
    """Each rank has trained alone before, on the same."""
    caches = []
    for number in range(2):
        model = TinyGPT(2)
        optimizer = adamw(model)
        for _ in range(2):
            optimizer.zero_grad()
            model(next(own_batches())).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
        cache = make_cache(Path(folder) / f"cache-{dist.get_rank()}-{number}", *CAPS)
        if number == 0:
            model = nn.parallel.DistributedDataParallel(model)
        caches.append((cache, *cache.wrap(model, optimizer)))
    train_beside(*caches, 2)


def test_a_trained_optimizer_can_be_shared(two: Ranks, tmp_path: Path) -> None:
    two.run(wrap_trained, str(tmp_path))


def fail_to_save(folder: str) -> list[tuple[str, str]]:
    (cache, model, optimizer), data = shared(folder, Counting(), adamw), own_batches()
    rank = dist.get_rank()
    train(model, optimizer, 1, data)
    found = [
        refused(lambda: cache.save(f"{folder}/saved", {"extra": object() if rank == 1 else 1})),
        refused(lambda: cache.load(f"{folder}/saved")),
    ]
    assert cache.save(f"{folder}/saved") == 1
    train(model, optimizer, 1, data)
    cache.save(f"{folder}/other")
    before = cache.full("norm.weight")
    found += [
        refused(lambda: cache.load(f"{folder}/nothing" if rank == 1 else f"{folder}/saved")),
        refused(lambda: cache.load(f"{folder}/other" if rank == 1 else f"{folder}/saved")),
    ]
    assert torch.equal(cache.full("norm.weight"), before)
    cache.load(f"{folder}/saved")
    train(model, optimizer, 1, data)
    return found


def test_what_one_rank_cannot_save_or_load_none_does(two: Ranks, tmp_path: Path) -> None:
    found = two.run(fail_to_save, str(tmp_path))
    assert found[1][0][0] == "TypeError"
    assert found[0][0] == ("RuntimeError", f"rank 1: TypeError: {found[1][0][1]}")
    for own in found:
        assert "holds no checkpoint" in own[1][1]
        assert "nothing holds no checkpoint" in own[2][1]
        assert own[3][0] == "MismatchError"
        assert "rank 1 is about to load is not that of rank 0" in own[3][1]


def save_in_a_thread(folder: str) -> tuple[str, str]:
    """Beside the thread that trains; and then in that."""
    (cache, model, optimizer), found = shared(folder, TinyGPT(2), adamw), []
    train(model, optimizer, 1, own_batches())
    thread = threading.Thread(
        target=lambda: found.append(refused(lambda: cache.save(f"{folder}/saved"))), name="saver"
    )
    thread.start()
    thread.join()
    assert cache.save(f"{folder}/saved") == 1
    cache.close()
    return found[0]


def test_ranks_save_in_the_threads_that_train(two: Ranks, tmp_path: Path) -> None:
    for kind, text in two.run(save_in_a_thread, str(tmp_path)):
        assert kind == "RuntimeError"
        assert "by thread 'saver'" in text
        assert "call it in the thread that trains" in text


# Ranks that die.


def train_until(folder: str, dies: int, when: str, seed: int) -> tuple[str, str]:
    """One rank dies; what the others' steps raise then. Their caches can be closed."""
    (cache, model, optimizer), data = shared(folder, TinyGPT(4), adamw), own_batches()
    train(model, optimizer, 1, data)
    cache.save(f"{folder}/saved")
    saved = cache.full("norm.weight")
    model(next(data)).backward()
    gradients = [p.grad for p in model.parameters()]
    wait_for_all("death")
    if dist.get_rank() == dies:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        delay = random.Random(seed).uniform(0, 0.1)
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    end = time.monotonic() + 30
    found = ("", "")
    while not found[0] and time.monotonic() < end:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        found = refused(optimizer.step)
    assert refused(optimizer.step)[0]
    again = refused(lambda: cache.load(f"{folder}/saved"))
    assert again[0]
    cache.close()
    # Alone, what was saved is all there.
    cache, model, optimizer = alone(folder, TinyGPT(4), adamw)
    cache.load(f"{folder}/saved")
    assert torch.equal(cache.full("norm.weight"), saved)
    train(model, optimizer, 1, data)
    cache.close()
    return found


@pytest.mark.parametrize("when", ["before", "within"])
@pytest.mark.parametrize(("backend", "world"), [("gloo", 2), ("taco", 2), ("taco", 3)])
def test_the_others_hear_of_a_rank_that_dies(
    tmp_path: Path, backend: str, world: int, when: str
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with Ranks(world, {"TACO_LOG": "error", "GLOO_SOCKET_IFNAME": "lo"}) as job:
        job.initialise(backend)
        dies = world - 1
        outcomes = job.outcomes(train_until, str(tmp_path), dies, when, seed)
        assert outcomes[dies].exit_code == -signal.SIGKILL
        for kind, text in [outcome.value for outcome in outcomes[:dies]]:
            assert kind == "PeerLostError", text


def forget_a_page(folder: str) -> tuple[str, str]:
    """The disk of one rank is gone in the middle of a step."""
    (_cache, model, optimizer), data = shared(folder, TinyGPT(6), adamw), own_batches()
    train(model, optimizer, 2, data)
    model(next(data)).backward()
    if dist.get_rank() == 1:
        for file in (Path(folder) / "shared-1").iterdir():
            os.truncate(file, 4096)
    found = refused(optimizer.step)
    assert "load a checkpoint" in refused(lambda: model(next(data)))[1]
    return found


def test_a_rank_whose_disk_fails_has_all_fail(two: Ranks, tmp_path: Path) -> None:
    found = two.run(forget_a_page, str(tmp_path))
    assert "failed in the middle" in found[0][1]
    assert "rank 1: " in found[0][1]
    assert "rank 1: " not in found[1][1]
