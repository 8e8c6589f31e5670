"""DistributedOptimizer: its steps are those of one process with all ranks' data."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from horovod_ranks import raises, still_works
from spawn_ranks import Ranks
from torch import nn
from torch.nn import functional

import taco_torch.horovod as hvd


def net() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.rand(5, 4, generator=generator), torch.rand(5, 3, generator=generator)


def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    inputs, targets = batch(step, rank)
    return functional.mse_loss(model(inputs), targets)


def wrapped(model: nn.Module, **arguments: Any) -> Any:
    own = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return hvd.DistributedOptimizer(own, named_parameters=model.named_parameters(), **arguments)


def reference(steps: int, passes: int = 1, total: bool = False) -> nn.Module:
    """One process that has all ranks' batches."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for each in range(passes):
            for rank in range(hvd.size()):
                share = loss(model, step * passes + each, rank)
                (share if total else share / hvd.size()).backward()
        optimizer.step()
    return model


def close(model: nn.Module, wanted: nn.Module, atol: float = 1e-5) -> None:
    for (name, found), want in zip(model.named_parameters(), wanted.parameters(), strict=True):
        assert torch.allclose(found, want, atol=atol), (name, found, want)


def trains(arguments: dict[str, Any], atol: float) -> None:
    total = arguments.get("op") == hvd.Sum
    model = net()
    optimizer = wrapped(model, **arguments)
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
    close(model, reference(3, total=total), atol)


@pytest.mark.parametrize(
    ("arguments", "atol"),
    [
        ({}, 1e-5),
        ({"op": hvd.Sum}, 1e-5),
        ({"gradient_predivide_factor": 3.0}, 1e-5),
        ({"groups": 2}, 1e-5),
        ({"groups": 50}, 1e-5),
        ({"compression": hvd.Compression.fp16}, 1e-2),
        ({"compression": hvd.Compression.fp16, "groups": 1}, 1e-2),
    ],
    ids=str,
)
def test_steps_are_those_of_one_process(
    hvd3: Ranks, arguments: dict[str, Any], atol: float
) -> None:
    hvd3.run(trains, arguments, atol)


def groups_by_lists() -> None:
    model = net()
    listed = list(model.parameters())
    with pytest.warns(DeprecationWarning, match="groups"):
        wrapped(net(), num_groups=2)
    optimizer = wrapped(model, groups=[[listed[3], listed[0]], [listed[1]]])
    for step in range(2):
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
    close(model, reference(2))
    raises(ValueError, lambda: wrapped(net(), groups=-1), "non-negative")
    raises(ValueError, lambda: wrapped(net(), groups="all"), "list of list")
    raises(ValueError, lambda: wrapped(net(), groups=[["a"]]), "torch.Tensor")
    twice = [[listed[0]], [listed[0]]]
    raises(ValueError, lambda: wrapped(net(), groups=twice), "only appear once")


def test_groups_of_parameters(hvd3: Ranks) -> None:
    hvd3.run(groups_by_lists)


def several_passes() -> None:
    model = net()
    optimizer = wrapped(model, backward_passes_per_step=2)
    for step in range(3):
        optimizer.zero_grad()
        for each in range(2):
            loss(model, 2 * step + each, hvd.rank()).backward()
        optimizer.step()
    close(model, reference(3, passes=2))
    optimizer.zero_grad()
    for each in range(2):
        loss(model, each, hvd.rank()).backward()
    raises(AssertionError, loss(model, 0, hvd.rank()).backward, "backward_passes_per_step")
    optimizer.synchronize()
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    loss(model, 0, hvd.rank()).backward()
    optimizer.step()
    raises(ValueError, lambda: wrapped(net(), backward_passes_per_step=0), "1 or more")


def test_several_backward_passes_per_step(hvd3: Ranks) -> None:
    hvd3.run(several_passes)


def clips() -> None:
    model = net()
    optimizer = wrapped(model)
    loss(model, 0, hvd.rank()).backward()
    raises(AssertionError, optimizer.zero_grad, "race condition")
    optimizer.synchronize()
    for parameter in model.parameters():
        assert parameter.grad is not None
        gathered = hvd.allgather(parameter.grad.flatten()[:1])
        assert torch.equal(gathered, gathered[:1].expand(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
    close(model, reference(1))
    loss(model, 1, hvd.rank()).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert len(caught) == 1
    assert "without optimizer.skip_synchronize()" in str(caught[0].message)
    optimizer.zero_grad()
    with warnings.catch_warnings():  # once only
        warnings.simplefilter("error")
        loss(model, 2, hvd.rank()).backward()
        optimizer.step()


def test_synchronize_skip_synchronize_and_the_warning(hvd3: Ranks) -> None:
    hvd3.run(clips)


def has_gradients_on_some_ranks() -> None:
    torch.manual_seed(1)
    layers = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layers.parameters(), lr=1.0), layers.named_parameters()
    )
    before = copy.deepcopy(layers)
    layers[hvd.rank() % 2](
        torch.ones(1, 2)
    ).sum().backward()  # ranks 0 and 2 the first, 1 the other
    optimizer.step()
    for number, share in ((0, 2 / 3), (1, 1 / 3)):
        moved = before[number].weight - layers[number].weight
        assert torch.allclose(moved, torch.full((1, 2), share))


def test_missing_gradients_count_as_zeros(hvd3: Ranks) -> None:
    hvd3.run(has_gradients_on_some_ranks)


def trains_in_turns() -> None:
    torch.manual_seed(6)
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(prefix=prefix)
        )
        for model, prefix in ((generator, "g"), (critic, "c"))
    ]
    for turn in range(4):
        for number, model in enumerate((generator, critic)):
            model.requires_grad_(number == turn % 2)
        for optimizer in optimizers:
            optimizer.zero_grad()
        critic(generator(torch.full((1, 2), 1.0 + hvd.rank()))).sum().backward()
        optimizers[turn % 2].step()
    for model in (generator, critic):
        everyone = hvd.allgather(model.weight.detach().view(1, -1))
        assert torch.equal(everyone, everyone[:1].expand_as(everyone))


def test_requires_grad_may_be_toggled(hvd3: Ranks) -> None:
    hvd3.run(trains_in_turns)


def checks_arguments() -> None:
    """These come before anything that a job is needed for."""
    hvd.shutdown()
    model = nn.Linear(2, 1)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    raises(ValueError, lambda: hvd.DistributedOptimizer(own, model.parameters()), "tuples")
    twice = [("a", parameter) for _, parameter in named]
    raises(ValueError, lambda: hvd.DistributedOptimizer(own, twice), "Found duplicates: a")
    raises(ValueError, lambda: hvd.DistributedOptimizer(own, named[:1]), "not named")
    raises(
        ValueError,
        lambda: hvd.DistributedOptimizer(own, named, op=hvd.Sum, gradient_predivide_factor=2.0),
        "gradient_predivide_factor",
    )
    raises(ValueError, lambda: hvd.DistributedOptimizer(own, named), "hvd.init()")
    hvd.init()
    once = hvd.DistributedOptimizer(own, named)
    raises(ValueError, lambda: hvd.DistributedOptimizer(once, named), "already")
    stranger = hvd.ProcessSet([0, 1])
    raises(
        ValueError,
        lambda: hvd.DistributedOptimizer(own, named, process_set=stranger),
        "not registered",
    )
    still_works()


def test_arguments_are_checked_before_init(hvd3: Ranks) -> None:
    hvd3.run(checks_arguments)


def keeps_to_a_set() -> None:
    pair = hvd.add_process_set([0, 2])
    model = net()
    optimizer = wrapped(model, process_set=pair)
    loss(model, 0, hvd.rank()).backward()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    wanted = net()
    alone = torch.optim.SGD(wanted.parameters(), lr=0.5, momentum=0.9)
    members = [0, 2] if pair.included() else [1]
    for rank in members:
        (loss(wanted, 0, rank) / len(members)).backward()
    alone.step()
    close(model, wanted)
    hvd.remove_process_set(pair)


def test_ranks_outside_the_process_set_step_alone(hvd3: Ranks) -> None:
    hvd3.run(keeps_to_a_set)


def trains_sparse(as_dense: bool) -> None:
    torch.manual_seed(2)
    table = nn.Embedding(6, 2, sparse=True)
    wanted = copy.deepcopy(table)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0),
        table.named_parameters(),
        sparse_as_dense=as_dense,
    )
    alone = torch.optim.SGD(wanted.parameters(), lr=1.0)
    for step in range(2):
        optimizer.zero_grad()
        table(torch.tensor([0, hvd.rank() + 1 + step])).sum().backward()
        optimizer.step()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        alone.zero_grad()
        for rank in range(hvd.size()):
            (wanted(torch.tensor([0, rank + 1 + step])).sum() / hvd.size()).backward()
        alone.step()
    assert torch.allclose(table.weight, wanted.weight)


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(hvd3: Ranks, as_dense: bool) -> None:
    hvd3.run(trains_sparse, as_dense)


def wrapped_tables(tables: nn.Module, **arguments: Any) -> Any:
    own = torch.optim.SGD(tables.parameters(), lr=1.0)
    return hvd.DistributedOptimizer(own, tables.named_parameters(), **arguments)


def lacks_sparse_gradients(groups: int) -> None:
    """Rank 0 uses the second table alone at first, the others both, and then the other way round;
    in the third step nobody uses the first one."""
    torch.manual_seed(2)
    tables = nn.ModuleList([nn.Embedding(6, 2, sparse=True), nn.Embedding(3, 4, sparse=True)])
    wanted = copy.deepcopy(tables)
    optimizer = wrapped_tables(tables, groups=groups)
    alone = torch.optim.SGD(wanted.parameters(), lr=1.0)
    for step in range(3):
        optimizer.zero_grad()
        alone.zero_grad()
        for rank in range(hvd.size()):
            uses = [step < 2 and (rank == 0) == (step == 1), True]
            for number, table in enumerate(tables):
                if uses[number]:
                    index = torch.tensor([rank, 2])
                    if rank == hvd.rank():
                        table(index).sum().backward()
                    (wanted[number](index).sum() / hvd.size()).backward()
        optimizer.step()
        alone.step()
        assert tables[0].weight.grad is not None
        assert tables[0].weight.grad.is_sparse
    for table, want in zip(tables, wanted, strict=True):
        assert torch.allclose(table.weight, want.weight)


@pytest.mark.parametrize("groups", [0, 1])
def test_a_sparse_gradient_may_be_missing_on_some_ranks(hvd3: Ranks, groups: int) -> None:
    hvd3.run(lacks_sparse_gradients, groups, deadline_s=60)


def finds_out_too_late() -> None:
    """Nobody has used the table when ranks agreed on what is sparse."""
    torch.manual_seed(2)
    table, rest = nn.Embedding(6, 2, sparse=True), nn.Linear(2, 1)
    both = nn.ModuleDict({"table": table, "rest": rest})
    optimizer = wrapped_tables(both)
    for step in range(4):
        optimizer.zero_grad()
        inputs = torch.ones(1, 2)
        if step in (1, 3) and hvd.rank() > 0:
            inputs = table(torch.tensor([1]))
        rest(inputs).sum().backward()
        if step == 1:
            text = raises(RuntimeError, optimizer.step, "table.weight", "allgather")
            assert "HorovodInternalError" not in text
        else:
            optimizer.step()
    still_works()


def test_a_sparse_gradient_that_comes_as_a_surprise_is_named(hvd3: Ranks) -> None:
    hvd3.run(finds_out_too_late, deadline_s=60)


def has_a_dense_gradient_too(groups: int) -> None:
    """Once all know that the table's gradient is sparse, it is dense on rank 0; then on all."""
    torch.manual_seed(2)
    table = nn.Embedding(6, 2, sparse=True)
    both = nn.ModuleDict({"table": table, "rest": nn.Linear(2, 1)})
    optimizer = wrapped_tables(both, groups=groups)
    for step in range(3):
        optimizer.zero_grad()
        is_dense = step == 2 or (step == 1 and hvd.rank() == 0)
        before = table.weight.detach().clone()
        index = torch.tensor([hvd.rank() % 6, 5])
        looked_up = functional.embedding(index, table.weight, sparse=not is_dense)
        (looked_up.sum() + both["rest"](torch.ones(1, 2)).sum()).backward()
        optimizer.step()
        wanted = torch.zeros(6, 2)
        for rank in range(hvd.size()):
            wanted[[rank % 6, 5]] += 1.0 / hvd.size()
        assert torch.allclose(before - table.weight.detach(), wanted)
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse != is_dense
    still_works()


@pytest.mark.parametrize("groups", [0, 1])
def test_a_sparse_gradient_may_be_dense_on_some_ranks(hvd3: Ranks, groups: int) -> None:
    hvd3.run(has_a_dense_gradient_too, groups, deadline_s=20)


def wraps_again(op: Any, names: bool) -> None:
    model = net()
    first = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    named = list(model.named_parameters()) if names else None
    older = [hvd.DistributedOptimizer(first, named) for _ in range(2)]
    newest = hvd.DistributedOptimizer(first, named, op=op)
    for step in range(2):
        newest.zero_grad()
        loss(model, step, hvd.rank()).backward()
        if step == 0:
            for optimizer in older:
                raises(RuntimeError, optimizer.step, "called again")
                raises(RuntimeError, optimizer.synchronize, "called again")
        newest.step()
    close(model, reference(2, total=op == hvd.Sum))


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_an_optimizer_that_is_made_again_replaces_the_older(
    hvd3: Ranks, op: Any, names: bool
) -> None:
    hvd3.run(wraps_again, op, names, deadline_s=60)


def wraps_for_others() -> None:
    model = net()
    optimizer = wrapped(model)
    first = hvd.add_process_set([0])
    wrapped(model, process_set=first)  # of one rank: it reduces nothing
    for step in range(2):
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
    close(model, reference(2))
    hvd.remove_process_set(first)


def test_an_optimizer_that_reduces_nothing_replaces_none(hvd3: Ranks) -> None:
    hvd3.run(wraps_for_others, deadline_s=60)


class NoState(hvd.elastic.State):
    """Nothing to keep."""

    def __init__(self) -> None:
        super().__init__(bcast_object=lambda each: each, get_rank=hvd.rank)

    def save(self) -> None: ...
    def restore(self) -> None: ...
    def sync(self) -> None: ...


def calls_it_again(remakes_model: bool) -> None:
    """Rank 0 is a survivor, whose training function begins a second time; others are newcomers."""
    calls = []
    outside = net()

    def train(_: Any) -> None:
        models = [net() if remakes_model else outside, net()]
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
            for model in models
        ]
        calls.append(optimizers)
        if hvd.rank() == 0 and len(calls) == 1:
            raise hvd.HostsUpdatedInterrupt(True)
        for model, optimizer in zip(models, optimizers, strict=True):
            loss(model, 0, hvd.rank()).backward()
            optimizer.step()
            close(model, reference(1))

    hvd.elastic.run_fn(train, lambda: None)(NoState())


@pytest.mark.parametrize("remakes_model", [False, True])
def test_unnamed_optimizers_are_counted_alike_by_survivors_and_newcomers(
    hvd3: Ranks, remakes_model: bool
) -> None:
    hvd3.run(calls_it_again, remakes_model, deadline_s=60)


def takes_a_closure() -> None:
    model = net()
    optimizer = wrapped(model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        own = loss(model, 0, hvd.rank())
        own.backward()
        return own

    assert optimizer.step(closure) is not None
    close(model, reference(1))
    model = net()  # whose gradients no other optimizer waits for
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=4)
    searching = hvd.DistributedOptimizer(lbfgs, model.named_parameters())

    def again() -> torch.Tensor:
        searching.zero_grad()
        own = loss(model, 0, hvd.rank())
        own.backward()
        return hvd.allreduce(own.detach())

    searching.step(again)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = hvd.allgather(flat.view(1, -1))
    assert torch.equal(everyone, everyone[:1].expand_as(everyone))


def test_a_closure_s_gradients_are_averaged_too(hvd3: Ranks) -> None:
    hvd3.run(takes_a_closure)


def with_a_scheduler() -> None:
    model = net()
    own = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(own, model.named_parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            optimizer.zero_grad()
            loss(model, step, hvd.rank()).backward()
            optimizer.step()
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert own.param_groups[0]["lr"] == 0.25  # they share their groups
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    loss(model, 2, hvd.rank()).backward()
    optimizer.step()
    assert calls == ["before", "after"]  # once a step


def test_schedulers_and_hooks_see_one_step(hvd3: Ranks) -> None:
    hvd3.run(with_a_scheduler)


def forgets() -> None:
    model = net()
    optimizer = wrapped(model)
    state = copy.deepcopy(optimizer.state_dict())
    loss(model, 0, hvd.rank()).backward()
    hvd.barrier()  # all have submitted their gradients
    hvd.shutdown()
    hvd.init()
    optimizer.load_state_dict(state)
    optimizer.zero_grad()
    loss(model, 1, hvd.rank()).backward()
    optimizer.step()
    still_works()


def test_load_state_dict_forgets_gradients_of_a_lost_world(hvd3: Ranks) -> None:
    hvd3.run(forgets)


def steps_by_adasum() -> None:
    torch.manual_seed(7)
    model = nn.Linear(3, 1, bias=False)
    start = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum
    )
    inputs = torch.tensor([[[1.0, 2.0, 3.0]], [[2.0, -1.0, 0.5]]])
    model(inputs[hvd.rank()]).sum().backward()
    optimizer.synchronize()  # says nothing
    optimizer.step()
    a, b = (-0.1 * each.flatten().double() for each in inputs)
    dot = float(a @ b)
    combined = (1 - dot / (2 * float(a @ a))) * a + (1 - dot / (2 * float(b @ b))) * b
    assert torch.allclose(model.weight, start + combined.float().view(1, -1), atol=1e-6)
    with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
        pass
    optimizer.zero_grad()


def test_adasum_combines_what_steps_have_changed(hvd2: Ranks) -> None:
    hvd2.run(steps_by_adasum)
