"""DistributedOptimizer compresses gradients where LIGHT_* variables ask for it, as DDP does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from horovod_ranks import joined, raises, still_works
from lightcc_models import OWN_HOSTS
from spawn_ranks import Ranks
from torch import nn

import taco_torch
import taco_torch.horovod as hvd

ROWS, COLUMNS = 64, 300


@pytest.fixture(scope="module")
def halves() -> Iterator[Ranks]:
    """Two ranks on hosts of their own, whose gradients travel in float16."""
    environment = {**OWN_HOSTS, "LIGHT_WIRE_DTYPE": "float16", "LIGHT_FUSION_BYTES": "16384"}
    with Ranks(2, environment) as made:
        yield joined(made)


@pytest.fixture(scope="module")
def largest() -> Iterator[Ranks]:
    """Two ranks on hosts of their own that send the largest tenth of their gradients."""
    environment = {
        **OWN_HOSTS,
        "LIGHT_TOPK_ALLREDUCE": "1",
        "LIGHT_TOPK_RATIO": "0.1",
        "LIGHT_TOPK_THRESHOLD": "0",
    }
    with Ranks(2, environment) as made:
        yield joined(made)


@pytest.fixture(scope="module")
def plain() -> Iterator[Ranks]:
    """Two ranks on hosts of their own, without any LIGHT_* variable."""
    with Ranks(2, OWN_HOSTS) as made:
        yield joined(made)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(COLUMNS, ROWS), nn.Tanh(), nn.Linear(ROWS, ROWS), nn.Tanh(), nn.Linear(ROWS, 2)
    )


def gradients(net: nn.Module, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(10 * step + rank)
    net(torch.randn(3, COLUMNS, generator=generator)).square().sum().backward()


def flat(net: nn.Module) -> torch.Tensor:
    parts = [p.grad for p in net.parameters() if p.grad is not None]
    return torch.cat([part.flatten() for part in parts])


def exact(step: int, op: int) -> torch.Tensor:
    net = model()
    for rank in range(hvd.size()):
        gradients(net, rank, step)
    return flat(net) / (hvd.size() if op == hvd.Average else 1)


def averages(op: int, **arguments: Any) -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters(), op=op, **arguments
    )
    for step in range(3):
        optimizer.zero_grad()
        sent = taco_torch.stats().lightcc
        gradients(net, hvd.rank(), step)
        optimizer.synchronize()
        after = taco_torch.stats().lightcc
        with optimizer.skip_synchronize():
            optimizer.step()
        found, wanted = flat(net), exact(step, op)
        assert torch.allclose(found, wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))
        assert not torch.equal(found, wanted)  # rounded on the way
        assert after != sent
        everyone = hvd.allgather(found.view(1, -1))
        assert torch.equal(everyone[0], everyone[1])


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_gradients_travel_in_16_bits(halves: Ranks, op: int) -> None:
    halves.run(averages, op)


def owes(**arguments: Any) -> None:
    """Over steps with the same gradients, all that is owed arrives."""
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters(), **arguments
    )
    total = torch.zeros_like(exact(0, hvd.Average))
    steps = 30
    for step in range(steps):
        optimizer.zero_grad()
        gradients(net, hvd.rank(), 0)
        optimizer.step()
        total += flat(net)
        assert step == 0 or int((flat(net) == 0).sum()) > 0.5 * total.numel()
    wanted = exact(0, hvd.Average)
    apart = float((total / steps - wanted).norm() / wanted.norm())
    assert apart < 0.5, apart


def test_what_topk_leaves_out_comes_later(largest: Ranks) -> None:
    largest.run(owes)


def is_asked_by_arguments() -> None:
    averages(hvd.Average, compression=hvd.Compression.lightcc("float16"))
    owes(compression=hvd.Compression.lightcc(ratio=0.1, threshold=0))
    net = model()  # "none" asks for nothing
    exactly = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0),
        net.named_parameters(),
        compression=hvd.Compression.lightcc("none"),
    )
    gradients(net, hvd.rank(), 0)
    exactly.step()
    wanted = exact(0, hvd.Average)
    assert torch.allclose(flat(net), wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    asked = hvd.Compression.lightcc()
    raises(
        ValueError,
        lambda: hvd.DistributedOptimizer(own, op=hvd.Max, compression=asked),
        "Compression.lightcc() asks",
        "MAX",
    )
    raises(
        ValueError,
        lambda: hvd.allreduce(torch.ones(2), compression=asked),  # type: ignore[arg-type]
        "for DistributedOptimizer()",
    )
    raises(ValueError, hvd.join, "Compression.lightcc()")


def test_compression_may_be_an_argument(plain: Ranks) -> None:
    plain.run(is_asked_by_arguments)


def compresses_no_more() -> None:
    net = model()
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    asked = hvd.Compression.lightcc("float16")
    hvd.DistributedOptimizer(own, net.named_parameters(), compression=asked)
    raises(ValueError, hvd.join, "Compression.lightcc()")
    optimizer = hvd.DistributedOptimizer(own, net.named_parameters())
    gradients(net, hvd.rank(), 0)
    optimizer.step()
    assert hvd.join() in range(hvd.size())
    still_works()


def test_ranks_may_join_once_nothing_compresses_any_more() -> None:
    with Ranks(2, OWN_HOSTS) as made:
        joined(made).run(compresses_no_more, deadline_s=60)


def test_lightcc_s_arguments_are_checked_at_once() -> None:
    raises(ValueError, lambda: hvd.Compression.lightcc(ratio=1.5), "1.5")
    raises(ValueError, lambda: hvd.Compression.lightcc("largest"), "largest")
    much: Any = "much"
    raises(TypeError, lambda: hvd.Compression.lightcc(threshold=much), "much")


class Halves(hvd.Compression.fp16):  # type: ignore[misc]
    """As programs write their own."""


def is_given_no_compressor() -> None:
    net = model()
    own = torch.optim.SGD(net.parameters(), lr=0.1)

    def made(compression: Any) -> Any:
        return hvd.DistributedOptimizer(own, net.named_parameters(), compression=compression)

    missing_call = r"write compression=hvd.Compression.lightcc(), with parentheses"
    raises(TypeError, lambda: made(hvd.Compression.lightcc), missing_call)
    raises(TypeError, lambda: made("fp16"), "'fp16'", "Compression.fp16")
    raises(TypeError, lambda: made(None), "None", "Compression.none")
    for compression in (hvd.Compression.fp16(), Halves, Halves()):
        optimizer = made(compression)
        gradients(net, hvd.rank(), 0)
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_no_compressor_is_an_error_at_once(plain: Ranks) -> None:
    plain.run(is_given_no_compressor)


def refuses() -> None:
    net = model()
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    named = list(net.named_parameters())

    def made(**arguments: Any) -> Any:
        return hvd.DistributedOptimizer(own, named, **arguments)

    raises(ValueError, lambda: made(compression=hvd.Compression.fp16), "FP16Compressor", "LIGHT")
    raises(ValueError, lambda: made(compression=hvd.Compression.fp16()), "FP16Compressor", "LIGHT")
    made(compression=hvd.Compression.none())
    raises(ValueError, lambda: made(op=hvd.Max), "MAX", "LIGHT")
    raises(ValueError, lambda: made(op=hvd.Adasum), "ADASUM", "LIGHT")
    pair = hvd.add_process_set([hvd.rank()] if hvd.size() == 1 else [0])
    if pair.included():
        made(process_set=pair)  # of one: nothing is sent
    hvd.remove_process_set(pair)
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.1), table.named_parameters()
    )
    raises(ValueError, table(torch.tensor([1])).sum().backward, "sparse_as_dense")
    raises(ValueError, hvd.join, "LIGHT_")
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    still_works()


def test_what_does_not_go_together_is_an_error(halves: Ranks) -> None:
    halves.run(refuses)


def trains_dense_table() -> None:
    torch.manual_seed(1)
    table = nn.Embedding(8, 4, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=True
    )
    before = table.weight.detach().clone()
    table(torch.tensor([0, hvd.rank() + 1])).sum().backward()
    optimizer.step()
    moved = before - table.weight.detach()
    assert torch.allclose(moved[0], torch.ones(4), atol=1e-2)
    assert torch.allclose(moved[1:3], torch.full((2, 4), 0.5), atol=1e-2)
    assert not moved[3:].any()


def test_a_sparse_gradient_as_a_dense_one(halves: Ranks) -> None:
    halves.run(trains_dense_table)


def goes_on_after_init() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0), net.named_parameters()
    )
    for step in range(2):
        gradients(net, hvd.rank(), step)
        optimizer.step()
        optimizer.zero_grad()
        hvd.shutdown()
        hvd.init()
    gradients(net, hvd.rank(), 2)
    optimizer.step()
    wanted = exact(2, hvd.Average)
    assert torch.allclose(flat(net), wanted, atol=3e-3 * float(wanted.abs().max()))


def test_an_optimizer_outlives_an_incarnation(halves: Ranks) -> None:
    halves.run(goes_on_after_init)
