"""Compression that chooses by itself: what it chooses on a slow network, what it leaves alone, and
that nothing is lost when it changes its mind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts
from lightcc_models import (
    OWN_HOSTS,
    Bag,
    assert_alike,
    chosen,
    close,
    dense_average,
    dense_sum,
    flat,
    owed,
    same,
)
from marks import whole
from spawn_ranks import Ranks, initialise
from stderr_file import stderr_into
from torch.nn.parallel import DistributedDataParallel

import taco_torch

pytestmark = taco_only
lightcc = taco_torch.lightcc

SIZES = (60_000, 9_000, 60_000)
ELEMENTS = sum(SIZES)
WORLD = 4
ENOUGH = 14  # steps for a choice and a second thought


@pytest.fixture(scope="module")
def slow_hosts() -> Iterator[Ranks]:
    """Two hosts of two ranks at 10 Mbit/s: 0.5 MB of gradients take 0.4 s."""
    environment = {"TACO_LOG": "warning"}
    with (
        Fabric(hosts=2, rate="10mbit") as fabric,
        host_ranks(fabric, environment, ranks_per_host=2) as made,
    ):
        made.run(join)
        yield made


@pytest.fixture(scope="module")
def near() -> Iterator[Ranks]:
    """Ranks that count as hosts of their own, though they share memory."""
    with Ranks(3, OWN_HOSTS) as made:
        yield made.initialise()


def wrapped(module: torch.nn.Module | None = None, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module or Bag(SIZES), bucket_cap_mb=0.2, **options)


def step_of(model: DistributedDataParallel, step: int) -> torch.Tensor:
    model.zero_grad()
    model(chosen(step, dist.get_rank(), SIZES)).backward()
    return flat([p.grad for p in model.parameters()]).clone()


def native_of(model: DistributedDataParallel) -> Any:
    known = lightcc.models.find(model)
    assert known is not None
    return known.native


def names_chosen(model: DistributedDataParallel) -> tuple[str, ...]:
    return tuple(native_of(model).chosen)


def learns_to_send_less(allow: tuple[str, ...]) -> tuple[str, ...]:
    """Every step's result is the same on all ranks, and what is missing is owed, to the bit of what
    rounding makes of sums; also over the changes in between."""
    model = wrapped()
    lightcc.compress(model, "auto", allow=allow, ratio=0.05, threshold=0)
    assert names_chosen(model) == ()
    delivered = torch.zeros(ELEMENTS)
    for step in range(ENOUGH):
        gradients = step_of(model, step)
        delivered += gradients
        if step % 6 == 1:
            assert_alike(gradients)
        if step < 3:
            close(gradients, dense_average(step, WORLD, SIZES))
    total = dense_sum(range(ENOUGH), WORLD, SIZES)
    exact_so_far = "float16" not in allow
    tolerance = 1e-3 if exact_so_far else 0.05
    close(delivered + owed(model), total, rtol=tolerance, atol=tolerance)
    return names_chosen(model)


@needs_hosts
@pytest.mark.parametrize(
    "allow", [("topk",), whole(("float16",)), whole(("float16", "topk")), whole(())]
)
def test_on_a_slow_network_it_sends_less_by_what_is_allowed(
    slow_hosts: Ranks, allow: tuple[str, ...]
) -> None:
    outcomes = slow_hosts.run(learns_to_send_less, allow, deadline_s=120)
    assert len(set(outcomes)) == 1, "all ranks choose alike"
    kinds = set(outcomes[0])
    assert kinds <= {"float32", *allow}
    if allow:
        assert kinds & set(allow), outcomes[0]
    else:
        assert outcomes[0] == (), "there is nothing to choose"


@needs_hosts
@pytest.mark.whole(instead="test_on_a_slow_network_it_sends_less_by_what_is_allowed")
@pytest.mark.parametrize("ranks_per_host", [(3, 1), (1, 2, 1)])
def test_hosts_may_have_different_numbers_of_ranks(ranks_per_host: tuple[int, ...]) -> None:
    """The smallest has one, so each host's first rank codes whatever leaves it."""
    hosts = len(ranks_per_host)
    with (
        Fabric(hosts=hosts, rate="10mbit") as fabric,
        host_ranks(fabric, {"TACO_LOG": "warning"}, ranks_per_host) as ranks,
    ):
        ranks.run(join)
        for allow in (("topk",), ("float16", "topk")):
            outcomes = ranks.run(learns_to_send_less, allow, deadline_s=120)
            assert len(set(outcomes)) == 1, "all ranks choose alike"
            assert set(outcomes[0]) & set(allow), outcomes[0]
        first = ranks.run(scales_the_loss, deadline_s=120)
        assert len(set(first)) == 1


class Slow(torch.autograd.Function):
    """Identity whose backward takes its time, as a layer's computation would."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(1.0)
        return gradient


class Hidden(torch.nn.Module):
    """A large layer whose gradients are there long before the computation ends."""

    def __init__(self) -> None:
        super().__init__()
        self.early = torch.nn.Parameter(torch.zeros(60_000))
        self.late = torch.nn.Parameter(torch.zeros(2000))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        last = Slow.apply(self.late).sum()  # what comes last here comes first in backward
        return last + (self.early * gradient).sum()


def hides() -> tuple[str, ...]:
    model = wrapped(Hidden())
    lightcc.compress(model, "auto", ratio=0.05, threshold=0)
    for step in range(8):
        model.zero_grad()
        model(torch.full((60_000,), float(dist.get_rank() + step))).backward()
        assert model.module.early.grad is not None
        same(model.module.early.grad, torch.full((60_000,), 1.5 + step))
    return names_chosen(model)


@needs_hosts
def test_what_hides_behind_the_computation_stays_exact(slow_hosts: Ranks) -> None:
    """240 kB take 0.19 s, and the backward pass goes on for a second."""
    for names in slow_hosts.run(hides, deadline_s=120):
        assert names
        assert set(names) == {"float32"}


def goes_back_to_exact(way: str) -> None:
    model = wrapped()
    lightcc.compress(model, "auto", allow=("topk",), ratio=0.05, threshold=0)
    delivered = torch.zeros(ELEMENTS)
    for step in range(10):
        delivered += step_of(model, step)
    assert "topk" in names_chosen(model)
    assert float(owed(model).norm()) > 0
    if way == "settings":
        lightcc.compress(model, "auto", allow=())
        delivered += step_of(model, 10)
    else:
        model.zero_grad()
        model(chosen(10, dist.get_rank(), SIZES)).backward()
        lightcc.flush(model)
        delivered += flat([p.grad for p in model.parameters()])
    expected = dense_sum(range(11), WORLD, SIZES)
    close(owed(model), torch.zeros(ELEMENTS))
    close(delivered, expected, rtol=1e-3, atol=1e-3)


@needs_hosts
@pytest.mark.parametrize("way", ["settings", "flush"])
def test_what_is_owed_goes_out_when_topk_is_over(slow_hosts: Ranks, way: str) -> None:
    slow_hosts.run(goes_back_to_exact, way, deadline_s=120)


def saves(folder: str) -> torch.Tensor:
    model = wrapped()
    lightcc.compress(model, "auto", allow=("topk",), ratio=0.05, threshold=0)
    delivered = torch.zeros(ELEMENTS)
    for step in range(12):
        delivered += step_of(model, step)
    torch.save(lightcc.state_dict(model), Path(folder) / f"{dist.get_rank()}.pt")
    dist.barrier()
    return delivered


def resumes(folder: str, delivered: torch.Tensor) -> None:
    """The choice is measured again; nothing is lost."""
    model = wrapped()
    lightcc.compress(model, "auto", allow=("topk",), ratio=0.05, threshold=0)
    path = Path(folder) / f"{dist.get_rank()}.pt"
    lightcc.load_state_dict(torch.load(path, weights_only=True), model)
    for step in range(12, 22):
        delivered = delivered + step_of(model, step)
    expected = dense_sum(range(22), WORLD, SIZES)
    close(delivered + owed(model), expected, rtol=1e-3, atol=1e-3)


@needs_hosts
def test_a_resumed_training_chooses_anew_and_loses_nothing(
    slow_hosts: Ranks, tmp_path: Path
) -> None:
    delivered = slow_hosts.run(saves, str(tmp_path), deadline_s=120)[0]
    slow_hosts.run(resumes, str(tmp_path), delivered, deadline_s=120)


def scales_the_loss() -> tuple[str, ...]:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=5)
    model = wrapped()
    lightcc.compress(model, "auto", ratio=0.05, threshold=0, grad_scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(16):
        optimizer.zero_grad()
        gradients = chosen(step, dist.get_rank(), SIZES)
        if step == 12:
            gradients[0][7] = float("inf")
        scaler.scale(model(gradients)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    for parameter in model.parameters():
        assert_alike(parameter.detach())
    return names_chosen(model)


@needs_hosts
def test_a_scaled_loss(slow_hosts: Ranks) -> None:
    outcomes = slow_hosts.run(scales_the_loss, deadline_s=120)
    assert set(outcomes[0]) != {"float32"}
    assert len(set(outcomes)) == 1


def manual_loop() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in SIZES]
    sent = []
    for step in range(10):
        for parameter, gradient in zip(
            parameters, chosen(step, dist.get_rank(), SIZES), strict=True
        ):
            parameter.grad = gradient
        before = taco_torch.stats()
        lightcc.all_reduce_gradients(
            parameters, compression="auto", allow=["topk"], ratio=0.01, threshold=0
        )
        sent.append((taco_torch.stats() - before).lightcc.bytes_after)
    assert sent[0] == 0
    assert sent[-1] > 0


@needs_hosts
def test_a_loop_without_ddp_learns_from_call_to_call(slow_hosts: Ranks) -> None:
    slow_hosts.run(manual_loop, deadline_s=120)


def differs() -> None:
    model = wrapped()
    ratio = 0.01 if dist.get_rank() else 0.02
    lightcc.compress(model, "auto", ratio=ratio, threshold=0)
    for step in range(12):
        step_of(model, step)


def test_ranks_that_choose_among_different_ways_are_told() -> None:
    with Ranks(3, {**OWN_HOSTS, "TACO_LOG": "off"}) as ranks:
        for outcome in ranks.initialise(timeout_s=20).outcomes(differs):
            assert outcome.error_type == "MismatchError", outcome
            assert "TopK 1%" in outcome.error
            assert "TopK 2%" in outcome.error


def sums_exactly() -> tuple[str, ...]:
    model = wrapped()
    lightcc.compress(model, "auto")
    for step in range(ENOUGH):
        close(step_of(model, step), dense_average(step, 3, SIZES))
    return names_chosen(model)


def test_on_one_host_there_is_nothing_to_choose() -> None:
    with Ranks(3, {"TACO_LOG": "warning"}) as ranks:
        assert ranks.initialise().run(sums_exactly) == [()] * 3


def accumulates() -> None:
    """no_sync(), a static graph, and parameters nobody used."""
    static = wrapped(static_graph=True)
    lightcc.compress(static, "auto")
    for step in range(6):
        close(step_of(static, step), dense_average(step, 3, SIZES))
    model = wrapped()
    lightcc.compress(model, "auto")
    total = None
    for step in range(10):
        if step % 2 == 0:
            model.zero_grad()
            with model.no_sync():
                model(chosen(step, dist.get_rank(), SIZES)).backward()
            total = dense_average(step, 3, SIZES)
        else:
            model(chosen(step, dist.get_rank(), SIZES)).backward()
            assert total is not None
            close(
                flat([p.grad for p in model.parameters()]),
                total + dense_average(step, 3, SIZES),
            )
    sparse = wrapped(find_unused_parameters=True)
    lightcc.compress(sparse, "auto")
    for step in range(10):
        gradients: list[torch.Tensor | None] = list(chosen(step, dist.get_rank(), SIZES))
        gradients[step % 3] = None
        sparse.zero_grad()
        sparse(gradients).backward()


def test_accumulation_static_graphs_and_unused_parameters(near: Ranks) -> None:
    near.run(accumulates)


def mistakes() -> None:
    model = wrapped()
    for options, text in [
        ({"allow": ["gzip"]}, "allow names 'gzip'"),
        ({"allow": ["float16", "bfloat16"]}, "both float16 and bfloat16"),
        ({"momentum": 0.9}, "momentum is 0.9"),
        ({"ratio": 2.0}, "ratio is 2"),
    ]:
        with pytest.raises(ValueError, match=text):
            lightcc.compress(model, "auto", **options)
    with pytest.raises(ValueError, match='allow is for compression "auto"'):
        lightcc.compress(model, "topk", allow=["topk"])


def test_mistakes_are_named(near: Ranks) -> None:
    near.run(mistakes)


def by_the_environment() -> tuple[str, ...]:
    model = wrapped()
    for step in range(6):
        close(step_of(model, step), dense_average(step, 3, SIZES))
    return (str(native_of(model).settings), *names_chosen(model))


def test_the_environment_allows_what_other_variables_ask_for() -> None:
    with Ranks(3, {**OWN_HOSTS, "LIGHT_AUTO": "1", "LIGHT_WIRE_DTYPE": "bfloat16"}) as ranks:
        for settings, *names in ranks.initialise().run(by_the_environment):
            assert settings == "float32, bfloat16, by what each bucket should cost"
            assert set(names) == {"float32"}


def tells(path: str, rank: int, port: int, compression: str | None) -> None:
    with stderr_into(path):
        initialise(rank, 3, port)
        model = wrapped()
        if compression:
            lightcc.compress(model, compression, threshold=0)
        for step in range(8):
            step_of(model, step)


def log_of(path: Path, environment: dict[str, str], compression: str | None) -> list[str]:
    with Ranks(3, {**OWN_HOSTS, **environment, "TACO_LOG": "info"}) as ranks:
        ranks.run_each(tells, [(str(path), rank, ranks.port, compression) for rank in range(3)])
    return [line for line in path.read_text().splitlines() if " lightcc: " in line]


def test_the_log_tells_what_was_chosen_and_why(tmp_path: Path) -> None:
    lines = log_of(tmp_path / "log", {}, "auto")
    assert "Bag: gradients go between hosts as float32, float16, TopK 1%" in lines[0]
    decided = [line for line in lines if "should expose" in line]
    assert len(decided) == 1, lines
    for text in ("all as float32", "float16", "TopK 1%", "ms of computation", "measured so far"):
        assert text in decided[0], decided[0]


def test_alone_the_variable_leaves_everything_exact_and_says_so(tmp_path: Path) -> None:
    lines = log_of(tmp_path / "log", {"LIGHT_AUTO": "1"}, None)
    assert lines
    assert all("LIGHT_AUTO=1: all gradients stay exact" in line for line in lines)
