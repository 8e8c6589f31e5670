"""Several threads with one cache: each call is right, waits for its turn, or is refused by name."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from zerocache_models import adamw, make_cache

pytestmark = taco_only

SECONDS = 60  # until a thread is taken for stuck
X = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))


def lines(count: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(count)])


def raised(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def in_thread(call: Callable[[], object], name: str = "second") -> Exception | None:
    """The exception of a call in a thread of its own, if any."""
    found: list[Exception | None] = []
    thread = threading.Thread(target=lambda: found.append(raised(call)), name=name)
    thread.start()
    thread.join(SECONDS)
    assert found, "the thread is stuck"
    return found[0]


@contextmanager
def in_the_middle(model: nn.Module, call: Callable[[], object]) -> Iterator[list[Any]]:
    """Calls it in another thread while the third module runs, on this one."""
    found: list[Any] = []
    handle = model[2].register_forward_pre_hook(lambda *_: found.append(in_thread(call)))
    yield found
    handle.remove()


@pytest.mark.parametrize("how", ["model", "module", "use", "step", "load", "set", "close"])
def test_a_second_thread_in_the_middle_of_a_pass_is_refused_by_name(
    tmp_path: Path, how: str
) -> None:
    model, plain = lines(), lines()
    cache = make_cache(tmp_path / "cache", 6, 6)
    model, optimizer = cache.wrap(model, adamw(model))
    cache.save(tmp_path / "saved")

    def use() -> None:
        with cache.use(model[4].weight):
            pass

    calls: dict[str, Callable[[], object]] = {
        "model": lambda: model(X),
        "module": lambda: model[4](X),
        "use": use,
        "step": optimizer.step,
        "load": lambda: cache.load(tmp_path / "saved"),
        "set": lambda: cache.full("4.weight", torch.zeros(64, 64)),
        "close": cache.close,
    }
    with in_the_middle(model, calls[how]) as found:
        output = model(X)
    assert isinstance(found[0], RuntimeError)
    assert "in use by thread 'MainThread'" in str(found[0])
    assert "by 'second' meanwhile" in str(found[0])
    assert torch.equal(output, plain(X))
    output.sum().backward()
    optimizer.step()
    assert cache.store.open == 0
    cache.close()


def test_another_thread_may_look_at_what_is_not_being_changed(tmp_path: Path) -> None:
    model, plain = lines(), lines()
    cache = make_cache(tmp_path / "cache", 8, 8)
    model, optimizer = cache.wrap(model, adamw(model))
    looked: list[Any] = []

    def look() -> None:
        looked.append(cache.full("4.weight"))
        cache.save(tmp_path / "saved")
        cache.report()

    with in_the_middle(model, look) as found:
        output = model(X)
    assert found == [None]
    assert torch.equal(looked[0], plain[4].weight)
    assert torch.equal(output, plain(X))
    output.sum().backward()
    optimizer.step()
    cache.close()


@contextmanager
def reader_that_is_slow(meanwhile: Callable[[], object]) -> Iterator[Callable[[Tensor], Tensor]]:
    """An operator that takes the address of its operand first, calls that, and then reads."""
    library = torch.library.Library("taco_threads", "FRAGMENT")
    library.define("read_late(Tensor values) -> Tensor")

    def read(values: Tensor) -> Tensor:
        address = values.data_ptr()
        meanwhile()
        return torch.tensor(list((ctypes.c_float * 4).from_address(address)))

    library.impl("read_late", read, "CPU")
    yield torch.ops.taco_threads.read_late
    library._destroy()


def test_what_another_thread_reads_is_there_until_it_has_read_it(tmp_path: Path) -> None:
    """The other thread reads a parameter that the model uses, and lets go of meanwhile."""
    model, plain = lines(), lines()
    cache = make_cache(tmp_path, 6, 6)
    model, _ = cache.wrap(model)
    weight = model[2].weight
    reads, passed, values = threading.Event(), threading.Event(), list[Tensor]()

    def meanwhile() -> None:
        reads.set()
        assert not passed.wait(1), "its use has ended, and others have come in its place"

    with torch.no_grad(), reader_that_is_slow(meanwhile) as read_late:
        second = threading.Thread(target=lambda: values.append(read_late(weight)))

        def begin(*_: object) -> None:
            second.start()
            assert reads.wait(SECONDS)

        handle = model[2].register_forward_pre_hook(begin)
        output = model(X)
        handle.remove()
        model(X)
        passed.set()
        second.join(SECONDS)
        assert torch.equal(values[0], plain[2].weight[0, :4])
        assert torch.equal(output, plain(X))
    cache.close()


@pytest.mark.parametrize("read", [lambda rows: rows[512:].sum(), lambda rows: rows[512:].tolist()])
def test_a_parameter_that_is_there_in_part_is_read_by_no_other_thread(
    tmp_path: Path, read: Callable[[Tensor], object]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1024, 64), nn.Linear(64, 64))
    cache = make_cache(tmp_path, 16, 20)  # the table has place alone
    model, _ = cache.wrap(model)
    rows = model[0].weight
    expected = cache.full(rows)[:4].sum()
    errors: list[Exception | None] = []
    second = threading.Thread(target=lambda: errors.append(raised(lambda: read(rows))))
    looked: list[bool] = []

    class Slow(TorchDispatchMode):
        """Has the second thread begin to read once the rows are there, and read no longer."""

        def __torch_dispatch__(
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is torch.ops.aten.sum.default:
                second.start()
                second.join(1)
                looked.append(second.is_alive())
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), cache.use(model[1]), cache.lend(), Slow():
        total = rows[:4].sum()
    second.join(SECONDS)
    assert looked == [True], "it has read what is not there"
    assert isinstance(errors[0], RuntimeError)
    assert "its use was not announced" in str(errors[0])
    assert torch.equal(total, expected)
    cache.close()


def test_threads_that_take_turns_are_served(tmp_path: Path) -> None:
    """Also after one of them has been left by an exception."""
    model, plain = lines(), lines()
    cache = make_cache(tmp_path, 6, 6)
    model, optimizer = cache.wrap(model, adamw(model))
    handle = model[2].register_forward_pre_hook(lambda *_: 1 / 0)
    assert isinstance(raised(lambda: model(X)), ZeroDivisionError)
    handle.remove()
    outputs: list[Any] = []
    assert in_thread(lambda: outputs.append(model(X))) is None
    assert in_thread(lambda: outputs[0].sum().backward(), "third") is None
    assert torch.equal(outputs[0], plain(X))
    optimizer.step()
    cache.close()


def test_a_checkpoint_saved_beside_steps_is_of_one_of_them(tmp_path: Path) -> None:
    model = lines(12)
    cache = make_cache(tmp_path / "cache", 6, 8)
    model, optimizer = cache.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for parameter in model.parameters():
        cache.full(parameter, torch.zeros(parameter.shape))
    stop, errors = threading.Event(), list[Exception | None]()

    def train() -> None:  # a step adds 1 to every element
        while not stop.is_set():
            for parameter in model.parameters():
                parameter.grad = torch.full(parameter.shape, -1.0)
            optimizer.step()

    trainer = threading.Thread(target=lambda: errors.append(raised(train)))
    trainer.start()
    for _ in range(4):
        cache.save(tmp_path / "saved")
        other = lines(12)
        reader = make_cache(None, 20, 20)
        other, _ = reader.wrap(other, torch.optim.SGD(other.parameters(), lr=1.0))
        reader.load(tmp_path / "saved")
        values = {value for p in other.parameters() for value in reader.full(p).unique().tolist()}
        assert len(values) == 1
        reader.close()
    stop.set()
    trainer.join(SECONDS)
    assert errors == [None]
    cache.close()


def losses_of(folder: Path, options: dict[str, bool], watched: bool) -> list[float]:
    model = lines()
    cache = make_cache(folder, 8, 8)
    model, optimizer = cache.wrap(model, adamw(model), **options)
    stop, errors = threading.Event(), list[Exception | None]()

    def look() -> None:
        while not stop.is_set():
            cache.full("3.weight")
            cache.stats()

    monitor = threading.Thread(target=lambda: errors.append(raised(look)))
    if watched:
        monitor.start()
    losses = []
    for _ in range(10):
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    stop.set()
    if watched:
        monitor.join(SECONDS)
        assert errors == [None]
    cache.close()
    return losses


@pytest.mark.parametrize("options", [{}, {"step_in_backward": True}])
def test_a_monitor_beside_training_changes_no_loss(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    alone = losses_of(tmp_path / "alone", options, False)
    assert losses_of(tmp_path / "watched", options, True) == alone
