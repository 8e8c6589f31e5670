"""Parameters that a model reads although no module announces them: with every cap as in torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zerocache_models import adamw, make_cache

pytestmark = taco_only

X = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))


class Given(nn.Module):
    """Returns its parameter, or a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, 32))

    def forward(self, rows: int | None = None) -> Tensor:
        return self.table if rows is None else self.table[:rows].unsqueeze(0)


class GivenTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole, self.part = Given(), Given()
        self.head = nn.Linear(32, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = torch.cat([inputs, self.whole()])[: len(inputs)] @ self.whole()
        return self.head(seen + self.part(len(inputs))[0])


class ReadsItsChild(nn.Module):
    """Reads a child's weight, and never calls the child."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 32)
        self.inner = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(F.linear(inputs, self.table.weight)) @ self.inner[0].weight.t()


class Heads(nn.Module):
    """Its results are computed in turns, and the first is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(32, 32)
        for name in ("unused", "a", "b", "after_a", "after_b"):
            setattr(self, name, nn.Parameter(torch.randn(32, 32) * 0.1))

    def heads(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        unused = inputs @ self.unused
        b = inputs @ self.b
        a = inputs @ self.a
        b = b @ self.after_b
        return unused, a @ self.after_a, b

    def forward(self, inputs: Tensor) -> Tensor:
        _, a, b = self.heads(self.into(inputs))
        return a + b


class Gate(nn.Module):
    """Leaves a loss on itself, as gates of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) * 0.1)
        self.loss: Any = None

    def forward(self, inputs: Tensor) -> Tensor:
        chances = (inputs @ self.weight).softmax(-1)
        self.loss = chances.mean(0).square().sum() + self.weight.square().sum()
        return chances


class LeavesALoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(Gate() for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        for gate in self.gates:
            inputs = inputs + gate(inputs)
        return inputs + sum(gate.loss for gate in self.gates)


class Held:
    """A result that only its module knows."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Hides(nn.Linear):
    def forward(self, inputs: Tensor, into: list[Tensor] | None = None) -> Any:
        if into is None:
            return Held(super().forward(inputs))
        into.append(super().forward(inputs))
        return None


class ReturnsWhatIsNotKnown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Hides(32, 32) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            into: list[Tensor] = []
            layer(inputs, into)
            inputs = layer(into[0].tanh()).value.tanh()
        return inputs


class BackwardReads(torch.autograd.Function):
    """Keeps its weight in a way of its own."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, sink: list[Tensor]) -> Tensor:
        ctx.weight = weight
        ctx.save_for_backward(inputs)
        return inputs @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (inputs,) = ctx.saved_tensors
        return gradient @ ctx.weight.t(), inputs.t() @ gradient, None


class LeavesACustomResult(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(32, 32)
        self.weight = nn.Parameter(torch.randn(32, 32) * 0.1)
        self.left: Any = None

    def inner(self, inputs: Tensor) -> None:
        self.left = BackwardReads.apply(inputs, self.weight, [])

    def forward(self, inputs: Tensor) -> Tensor:
        self.inner(self.into(inputs))
        return self.left.square()  # type: ignore[no-any-return]


def decay(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.add_(parameter.detach().sign(), alpha=1e-3)


class HooksOfGradients(nn.Sequential):
    """Weight decay and more by hooks that read the weights."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
        for parameter in self.parameters():
            parameter.register_hook(lambda g, p=parameter: g + 1e-2 * p.detach())
            parameter.register_post_accumulate_grad_hook(decay)
        self[2].register_full_backward_pre_hook(lambda m, g: (g[0] * m.weight.mean(),))
        self[2].register_full_backward_hook(lambda m, _, g: (g[0] * m.weight.mean(),))


class WritesIntoItsChild(nn.Module):
    """Changes a child's weight that it does not call: through p.data, and a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        self.table.weight.data[0].mul_(0.5)
        with torch.no_grad():
            self.table.bias.add_(0.25)
        return self.head(inputs @ self.table.weight + self.table.bias)


KINDS = [
    GivenTwice,
    ReadsItsChild,
    Heads,
    LeavesALoss,
    ReturnsWhatIsNotKnown,
    LeavesACustomResult,
    HooksOfGradients,
    WritesIntoItsChild,
]


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(kind(), nn.Linear(32, 32), kind())


def losses_of(model: nn.Module, optimizer: Any) -> list[float]:
    found = []
    for step in range(3):
        loss = (model(X + step) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            found += [loss.item(), model(X).mean().item()]
    return found


def in_cache(
    kind: Callable[[], nn.Module], directory: Path, device: int, host: int, **options: Any
) -> tuple[list[float], dict[str, Tensor]]:
    cache = make_cache(directory, device, host, 400)
    model = made(kind)
    model, optimizer = cache.wrap(model, adamw(model), **options)
    losses = losses_of(model, optimizer)
    assert cache._store.open == 0
    values = {name: cache.full(name) for name, _ in model.named_parameters()}
    cache.close()
    return losses, values


@pytest.mark.parametrize("gradients", ["in memory", "stepped", "kept"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_no_module_announces_is_read_as_in_torch(
    tmp_path: Path, kind: Callable[[], nn.Module], gradients: str
) -> None:
    if kind is HooksOfGradients and gradients != "in memory":
        pytest.skip("hooks that edit p.grad once it is there come too late")
    if kind is WritesIntoItsChild and gradients == "stepped":
        pytest.skip("torch raises as well: a saved weight was changed")
    plain = made(kind)
    expected = losses_of(plain, adamw(plain))
    options = {"step_in_backward": gradients != "in memory", "clipping": gradients == "kept"}
    large = in_cache(kind, tmp_path / "large", 200, 200, **options)
    least = in_cache(kind, tmp_path / "least", 9, 6, **options)
    assert least[0] == large[0]
    assert all(torch.equal(value, large[1][name]) for name, value in least[1].items())
    assert large[0] == pytest.approx(expected, rel=1e-4)


WIDE = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))


class GivesATable(nn.Module):
    """Gives another module's weight to a module inside of one that has its own in use, as the first
    DeBERTa does with the embedding of distances."""

    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 64)
        self.inner = nn.ModuleList(TakesATable() for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        for inner in self.inner:
            inputs = inner(inputs, self.table.weight)
        return inputs


class GivesRows(GivesATable):
    """Gives rows of a table that is larger than all else, and hands it to a function of its own."""

    def __init__(self) -> None:
        super().__init__(1024)

    def forward(self, inputs: Tensor) -> Tensor:
        read: Tensor = BackwardReads.apply(inputs, self.table.weight[-64:], [])
        return super().forward(read)


class TakesATable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.randn(64, 64) * 0.1)
        self.project = nn.Linear(64, 64, bias=False)

    def forward(self, inputs: Tensor, table: Tensor) -> Tensor:
        queries = (inputs @ self.own).tanh()
        return (queries @ self.project(table[:32]).t() @ table[32:64]) @ self.own


class ChangesItselfLate(nn.Linear):
    """Its backward pass changes a parameter through p.data, in the middle of its use."""

    def __init__(self) -> None:
        super().__init__(64, 64)
        self.seen = nn.Parameter(torch.ones(64, 64), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        result = (inputs @ self.weight).tanh()
        result.register_hook(self.note)
        return result + self.bias

    def note(self, gradient: Tensor) -> None:
        self.seen.data[0].add_(gradient.mean())


class ComputedAgain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), ChangesItselfLate()
        self.back = nn.Linear(128, 64)

    def inner(self, inputs: Tensor) -> Tensor:
        return self.last(self.back(self.first(inputs)))  # type: ignore[no-any-return]

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, inputs, use_reentrant=False)
        return result


def min_pages(make: Callable[[], nn.Module], folder: Path, **options: Any) -> int:
    """Pages of device memory that wrap() asks for."""
    for pages in range(1, 30):
        torch.manual_seed(0)
        model = make()
        with make_cache(folder, pages, 12, 400) as cache:
            try:
                cache.wrap(model, adamw(model), **options)
                return pages
            except ValueError:
                continue
    raise AssertionError("it does not fit into 30 pages")


@pytest.mark.parametrize("gradients", ["in memory", "stepped", "kept"])
@pytest.mark.parametrize("kind", [GivesATable, GivesRows, ComputedAgain])
def test_uses_that_wait_give_way_to_an_operator_and_lose_nothing(
    tmp_path: Path, kind: Callable[[], nn.Module], gradients: str
) -> None:
    def results(pages: int) -> tuple[list[float], list[Tensor]]:
        torch.manual_seed(0)
        model = kind()
        cache = make_cache(tmp_path, pages, 12, 400)
        model, optimizer = cache.wrap(model, adamw(model), **options)
        losses = []
        for number in range(3):
            loss = (model(WIDE + number) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert cache.store.open == 0
        values = [cache.full(parameter) for parameter in model.parameters()]
        cache.close()
        return losses, values

    options = {"step_in_backward": gradients != "in memory", "clipping": gradients == "kept"}
    large, least = results(60), results(min_pages(kind, tmp_path, **options))
    assert least[0] == large[0]
    assert all(map(torch.equal, least[1], large[1]))


class WritesRows(nn.Module):
    """Changes some rows of a child's table, more of which than these has no place beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(1024, 64), nn.Linear(64, 64)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = self.table.weight.data
        for first in (0, 960, 500):
            self.last.weight.data.addmm_(rows[first : first + 64], rows[:64], alpha=1e-3)
            rows[first : first + 20].add_(self.last.weight.data[:20])
        result: Tensor = self.last(inputs)
        return result


def test_changes_of_a_part_of_a_parameter_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = WritesRows()
    with torch.no_grad():
        expected = [plain(WIDE) for _ in range(3)]
    torch.manual_seed(0)
    model = WritesRows()
    with make_cache(tmp_path, 17, 20, 400) as cache, torch.no_grad():
        cache.wrap(model)
        assert all(torch.equal(model(WIDE), values) for values in expected)
        for name, values in plain.named_parameters():
            assert torch.equal(cache.full(name), values), name


def test_an_operator_that_does_not_fit_says_how_much_it_needs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(6)])
    with make_cache(tmp_path, 2, 6, 60) as cache:
        model, _ = cache.wrap(model)
        with cache.lend(), pytest.raises(RuntimeError, match=r"needs 6 pages .*give it 6 pages"):
            torch.stack(list(model.parameters()))


def test_an_operator_of_a_library_has_all_of_what_it_is_given_a_part_of(tmp_path: Path) -> None:
    """It may be written in Python, and read the rest."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1024, 64), nn.Linear(64, 64))
    whole = model[0].weight
    library = torch.library.Library("taco_lending", "FRAGMENT")
    library.define("sum_around(Tensor rows) -> Tensor")
    library.impl("sum_around", lambda _: whole.data.sum(), "CPU")
    with make_cache(tmp_path, 16, 20) as cache, torch.no_grad():  # the table has place alone
        model, _ = cache.wrap(model)
        expected = cache.full(whole).sum()
        with cache.use(model[1]), cache.lend():
            assert torch.equal(torch.ops.taco_lending.sum_around(whole[:4]), expected)
    library._destroy()


def test_parts_of_what_operators_are_given_are_forgotten(tmp_path: Path) -> None:
    """A program may give ever other rows; what is in use stays."""
    model = nn.Sequential(nn.Embedding(4096, 64), nn.Linear(64, 64))
    with make_cache(tmp_path, 80, 20) as cache:
        model, _ = cache.wrap(model)
        store, table = cache.store, model[0].weight
        first = store.part_of_operands([table[:1]], False)
        assert store.part_of_operands([table[:1]], False) == first
        used = store.part_of_operands([table[:200]], False)
        store.begin(used, False)
        parts = [
            store.part_of_operands([table[64 * low : 64 * high]], False)
            for low in range(64)
            for high in range(low + 1, 65)
        ]
        assert max(parts) < first + 1100
        store.end(used, False)


def test_sets_that_were_in_use_by_hand_are_forgotten(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(12)])
    weights = list(model.parameters())
    with make_cache(tmp_path, 20, 20) as cache:
        model, _ = cache.wrap(model)
        inputs = torch.ones(1, 8)
        with cache.use(weights[0]) as keep:
            kept = keep(inputs @ weights[0])  # its backward pass comes later
        first = cache.store.add_part(["0.weight"])
        for chosen in range(1, 1 << 12):
            with cache.use(*[each for i, each in enumerate(weights) if chosen >> i & 1]):
                pass
        assert cache.store.add_part(["0.weight"]) < first + 1100
        kept.sum().backward()
        assert torch.equal(weights[0].grad, torch.ones(8, 8))
        assert cache.store.open == 0


def test_a_scripted_module_learns_as_in_torch(tmp_path: Path) -> None:
    def scripted() -> nn.Module:
        return torch.jit.script(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)))

    plain = made(scripted)
    expected = losses_of(plain, adamw(plain))
    assert in_cache(scripted, tmp_path, 9, 6)[0] == pytest.approx(expected, rel=1e-4)


class ReadsAnAlias(nn.Module):
    """Leaves a result of ``w.data``, which has no version that torch could compare."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) * 0.1)
        self.left: Any = None

    def forward(self, inputs: Tensor) -> Tensor:
        self.left = [inputs @ self.weight.data]
        return inputs @ self.weight


class AliasFirst(nn.Module):
    """Its alias is read last in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.alias = nn.Linear(32, 32), ReadsAnAlias()

    def forward(self, inputs: Tensor) -> Tensor:
        self.alias(self.into(inputs))
        return self.alias.left[0].tanh() @ self.alias.weight


def test_a_weight_that_was_stepped_is_not_lent_once_more(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, 9, 6, 400)
    model = made(AliasFirst)
    model, _ = cache.wrap(model, adamw(model), step_in_backward=True)
    with pytest.raises(RuntimeError, match=r"'2\.alias\.weight' .*has stepped it already"):
        model(X).square().mean().backward()
    cache.close()


def test_what_is_lent_and_does_not_fit_says_so(tmp_path: Path) -> None:
    cache = make_cache(tmp_path, 2, 6, 60)
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(4)])
    model, _ = cache.wrap(model)
    weights = list(model.parameters())
    with cache.lend():
        assert torch.equal(weights[0].sum(), cache.full("0.weight").sum())
        with pytest.raises(RuntimeError, match=r"is not in memory now: .*device"):
            torch.stack(weights)
    with pytest.raises(RuntimeError, match="its use was not announced"):
        weights[0].sum()
    cache.close()


def test_outside_of_modules_parameters_are_lent_where_the_program_asks(tmp_path: Path) -> None:
    plain = made(GivenTwice)
    cache = make_cache(tmp_path, 9, 6, 400)
    model, _ = cache.wrap(made(GivenTwice))
    weight = model[1].weight
    with cache.lend():
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one.norm(), other.norm())
            one.data.mul_(0.5)  # a page goes and comes between these
            other.data.mul_(0.5)
        with torch.no_grad():
            weight[3:5].fill_(7.0)
            plain[1].weight[3:5].fill_(7.0)
    with pytest.raises(RuntimeError, match="its use was not announced"):
        weight.norm()
    for name, expected in plain.named_parameters():
        assert torch.equal(cache.full(name), expected), name
    cache.close()
    with pytest.raises(RuntimeError, match="closed"), cache.lend():
        pass


@pytest.mark.parametrize("kind", ["LBFGS", "RMSprop", "AdamW"])
def test_an_optimizer_of_torch_steps_what_it_is_lent(tmp_path: Path, kind: str) -> None:
    def losses_of(model: nn.Module, lend: Callable[[], Any]) -> list[float]:
        optimizer: Any = getattr(torch.optim, kind)(model.parameters(), lr=0.01)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(X) - 1).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        losses: list[float] = []
        for _ in range(3):
            with lend():
                optimizer.step(closure)
        return losses

    expected = losses_of(made(GivenTwice), nullcontext)
    with make_cache(tmp_path, 9, 6, 400) as cache:
        model, _ = cache.wrap(made(GivenTwice))
        assert losses_of(model, cache.lend) == expected


def test_values_given_to_p_data_are_the_parameters(tmp_path: Path) -> None:
    plain = made(GivenTwice)
    cache = make_cache(tmp_path, 9, 6, 400)
    model, _ = cache.wrap(made(GivenTwice))
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        one.data = other.data = other.data + 0.25
    for name, expected in plain.named_parameters():
        assert torch.equal(cache.full(name), expected), name
    with cache.lend():
        model[1].bias.data += 1.0
    assert torch.equal(cache.full("1.bias"), plain[1].bias + 1.0)
    cache.close()
