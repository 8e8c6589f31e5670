"""A parameter stays the same object while its bytes move, and nobody may touch it meanwhile."""

from __future__ import annotations

import copy
import faulthandler
import gc
import io
import os
import pickle
import resource
import signal
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import taco_only
from footprint import footprint
from parameter_range import FRAME, INPUT, Placed, layers, make_range
from torch import nn

pytestmark = taco_only

ABSENT = "parameter '0.weight' is not in memory now"


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def loaded(value: object) -> Any:
    return torch.load(io.BytesIO(saved(value)))


# Uses that programs make of a parameter, inside and outside modules. Each result is compared with
# that of an ordinary parameter.
TOUCHES: dict[str, Callable[[nn.Parameter], Any]] = {
    "functional": lambda p: F.linear(INPUT, p),
    "matmul": lambda p: INPUT @ p.t(),
    "data": lambda p: p.data + 1,
    "detach": lambda p: p.detach().exp(),
    "clone": lambda p: p.clone(),
    "conversion": lambda p: p.to(torch.float64),
    "view": lambda p: p.view(-1)[3:].sum(),
    "index": lambda p: p[1, 2].item(),
    "list": lambda p: p.tolist(),
    "print": repr,
    "print a view": lambda p: str(p.detach()[0]),
    "bool": lambda p: bool(p[0, 0] > 100),
    "iteration": lambda p: [float(row.sum()) for row in p.detach()],
    "equal": lambda p: torch.equal(p, torch.zeros_like(p)),
    "norm": lambda p: torch.linalg.vector_norm(p.detach()),
    "foreach": lambda p: torch._foreach_add([p.detach()], 1)[0],
    "vector": lambda p: nn.utils.parameters_to_vector([p]),
    "copy from": lambda p: torch.empty_like(p).copy_(p),
    "write": lambda p: p.data.mul_(1),
    "write through a view": lambda p: p.data.view(-1)[:5].zero_(),
    "out": lambda p: torch.add(torch.ones(32, 32), 1, out=p.data),
    "numpy": lambda p: p.detach().numpy().copy(),
    "dlpack": lambda p: torch.from_dlpack(p.detach()).clone(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda p: pickle.loads(pickle.dumps(p)),
    "save and load": loaded,
    "storage to bytes": lambda p: p.untyped_storage().tolist(),
    "storage copy": lambda p: torch.UntypedStorage(p.untyped_storage().nbytes()).copy_(
        p.untyped_storage()
    ),
    "Adam": lambda p: one_step(torch.optim.AdamW, p),
    "fused Adam": lambda p: one_step(torch.optim.AdamW, p, fused=True),
    "SGD": lambda p: one_step(torch.optim.SGD, p, lr=0.1),
}


def one_step(optimizer: Any, parameter: nn.Parameter, **options: Any) -> torch.Tensor:
    parameter.grad = torch.ones(32, 32)
    optimizer([parameter], **options).step()
    return parameter.data


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(got, torch.Tensor):
        assert torch.equal(got, expected)
    elif isinstance(got, torch.UntypedStorage):
        assert got.tolist() == expected.tolist()
    elif hasattr(got, "tolist"):
        assert (got == expected).all()
    else:
        assert got == expected


@pytest.mark.parametrize("touch", TOUCHES)
def test_whoever_touches_an_evicted_parameter_is_told_its_name(touch: str) -> None:
    placed = Placed(layers())
    placed.range.evict("0.weight")
    with pytest.raises(RuntimeError, match=ABSENT):
        TOUCHES[touch](placed.model[0].weight)


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_fetched_parameter_is_as_any_other(touch: str) -> None:
    placed, plain = Placed(layers()), layers()
    placed.evict()
    placed.fetch()
    assert_same(TOUCHES[touch](placed.model[0].weight), TOUCHES[touch](plain[0].weight))
    # Values written in place move along.
    placed.evict()
    placed.fetch()
    assert torch.equal(placed.model[0].weight, plain[0].weight)


def test_nothing_that_a_program_holds_is_replaced() -> None:
    model = layers()
    parameter = model[0].weight
    before = (id(parameter), parameter.untyped_storage()._cdata, parameter._version)
    seen: list[torch.Tensor] = []
    parameter.register_hook(seen.append)
    parameter.note = "kept"
    placed = Placed(model)
    address = parameter.data_ptr()
    assert address == placed.range.address("0.weight")
    for _ in range(3):
        placed.evict()
        placed.fetch()
        assert model[0].weight is parameter
        after = (id(parameter), parameter.untyped_storage()._cdata, parameter._version)
        assert after == before
        assert parameter.data_ptr() == address
    model(INPUT).sum().backward()
    assert len(seen) == 1
    assert parameter.note == "kept"


def test_shapes_and_ties_of_an_evicted_parameter_can_be_asked_for() -> None:
    placed = Placed(layers())
    placed.evict()
    parameter = placed.model[0].weight
    assert parameter.shape == (32, 32)
    assert parameter.t().stride() == (1, 32)
    assert parameter.detach().is_set_to(parameter.data)
    assert parameter.untyped_storage().nbytes() == 32 * 32 * 4
    assert sum(p.numel() for p in placed.model.parameters()) == 2 * (32 * 32 + 32)
    assert list(placed.model.state_dict()) == placed.names


def test_a_state_dict_of_evicted_parameters_cannot_be_read_or_loaded() -> None:
    placed = Placed(layers())
    state = placed.model.state_dict()
    values = {name: value.clone() for name, value in state.items()}
    placed.evict()
    for use in (saved, copy.deepcopy):
        with pytest.raises(RuntimeError, match="not in memory now"):
            use(state)
    with pytest.raises(RuntimeError, match=ABSENT):
        placed.model.load_state_dict(values)
    placed.fetch()
    assert loaded(state).keys() == values.keys()
    placed.model.load_state_dict({name: value + 1 for name, value in values.items()})
    placed.evict()
    placed.fetch()
    for name, value in placed.model.state_dict().items():
        assert torch.equal(value, values[name] + 1)


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].weight = model[0].weight
    placed = Placed(model)
    placed.range.evict("1.weight")
    with pytest.raises(RuntimeError, match=r"'0.weight' \(also '1.weight'\) is not in memory"):
        model[0].weight.sum()
    placed.range.fetch("0.weight")
    assert model[1].weight is model[0].weight
    version = model[0].weight._version
    placed.range.write("1.weight", torch.ones(16, 16))
    assert model[0].weight._version == version + 1
    assert torch.equal(model[0].weight, torch.ones(16, 16))


def test_parameters_on_one_storage_move_together() -> None:
    flat = torch.arange(64.0)
    first, second = nn.Parameter(flat[:16]), nn.Parameter(flat[16:].view(6, 8))
    view = first.view(4, 4)
    area = make_range()
    area.place("first", first)
    area.place("second", second)
    assert area.frames == 1
    area.evict("first")
    for touched in (first, second, view, flat):
        with pytest.raises(RuntimeError, match=r"'first' \(also 'second'\)"):
            touched.sum()
    versions = [t._version for t in (first, second, view)]
    area.write("second", torch.arange(64.0) + 1)
    assert [t._version for t in (first, second, view)] == [v + 1 for v in versions]
    area.fetch("second")
    assert flat.tolist() == list(range(1, 65))
    assert second.data_ptr() == area.address("first") + 64


def test_a_frozen_parameter_moves_as_well() -> None:
    model = layers()
    model[0].weight.requires_grad_(False)
    placed = Placed(model)
    placed.evict()
    placed.fetch()
    model(INPUT).sum().backward()
    assert model[0].weight.grad is None
    assert not model[0].weight.requires_grad
    assert model[2].weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.complex64])
def test_every_dtype_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    values = torch.arange(3 * FRAME, dtype=torch.int64).to(torch.uint8).view(dtype)
    parameter = nn.Parameter(values.clone(), requires_grad=False)
    area = make_range()
    area.place("p", parameter)
    area.evict("p")
    area.fetch("p")
    assert torch.equal(parameter.view(torch.uint8), values.view(torch.uint8))


def test_a_parameter_made_in_inference_mode_can_be_written() -> None:
    with torch.inference_mode():
        parameter = nn.Parameter(torch.zeros(8), requires_grad=False)
    area = make_range()
    area.place("p", parameter)
    area.write("p", torch.ones(8))
    assert torch.equal(parameter, torch.ones(8))


def child_ends_with(child: Callable[[], object]) -> int:
    """The wait status of a forked child that calls `child`, whose False says that it failed."""
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = 1
        try:
            code = 0 if child() is not False else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_a_pointer_that_was_kept_faults_and_never_reads_other_bytes() -> None:
    placed = Placed(layers())
    kept = placed.model[0].weight.detach().numpy()
    values = kept.copy()
    placed.range.evict("0.weight")
    status = child_ends_with(lambda: kept.sum())
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    placed.range.fetch("0.weight")
    assert (kept == values).all()


def test_a_forked_child_sees_what_was_present_and_is_refused_the_rest() -> None:
    placed = Placed(layers())
    placed.range.evict("0.weight")
    bias = placed.model[0].bias
    values = bias.tolist()

    def child() -> bool:
        if bias.tolist() != values:
            return False
        with torch.no_grad():
            bias.zero_()
        with pytest.raises(RuntimeError, match=ABSENT):
            placed.model[0].weight.tolist()
        with pytest.raises(ValueError, match="this process was forked"):
            placed.range.fetch("0.weight")
        placed.range = None
        return bias.tolist() == [0.0] * 32

    assert child_ends_with(child) == 0
    assert bias.tolist() == values
    placed.range.fetch("0.weight")
    assert torch.equal(placed.model[0].weight, layers()[0].weight)


def test_memory_goes_with_what_is_evicted() -> None:
    megabytes = 96
    parameter = nn.Parameter(torch.ones(megabytes << 18))
    area = make_range(32, 32, 4 << 20)
    area.place("p", parameter)
    before = footprint()["resident"]
    area.evict("p")
    assert footprint()["resident"] < before - (megabytes << 20) * 9 // 10
    area.fetch("p")
    assert footprint()["resident"] < before + (8 << 20)
    assert parameter.sum() == megabytes << 18


def test_moving_a_thousand_times_leaves_nothing_behind() -> None:
    placed = Placed(layers())

    def cycles(count: int) -> dict[str, int]:
        for _ in range(count):
            placed.evict()
            placed.fetch()
        return footprint()

    before, after = cycles(50), cycles(1000)
    assert after["threads"] <= before["threads"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["mappings"] <= before["mappings"] + 2
    assert after["resident"] <= before["resident"] + (4 << 20)
    assert torch.equal(placed.model[0].weight, layers()[0].weight)


def test_making_and_dropping_ranges_leaves_nothing_behind() -> None:
    def cycles(count: int) -> dict[str, int]:
        for _ in range(count):
            Placed(layers()).evict()
        gc.collect()
        return footprint()

    before, after = cycles(5), cycles(50)
    assert after["threads"] <= before["threads"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["mappings"] <= before["mappings"] + 5
    assert after["resident"] <= before["resident"] + (4 << 20)


def test_a_model_that_is_dropped_frees_its_memory() -> None:
    placed = Placed(layers())
    area = placed.range
    assert area.frames == 4
    gone = weakref.ref(placed.model)
    del placed
    gc.collect()
    assert gone() is None
    area.place("another", nn.Parameter(torch.ones(4)))
    assert area.frames == 1


def test_parameters_outlive_the_range_if_they_are_present() -> None:
    placed = Placed(layers())
    model = placed.model
    placed.range.evict("0.weight")
    del placed
    gc.collect()
    assert torch.equal(model[2].weight, layers()[2].weight)
    with pytest.raises(RuntimeError, match=f"{ABSENT}: the cache .* is gone"):
        model[0].weight.sum()


def test_a_parameter_can_be_given_back_to_torch() -> None:
    placed, plain = Placed(layers()), layers()
    placed.evict()
    for name in placed.names:
        placed.range.restore(name)
    assert placed.range.frames == 0
    for parameter, expected in zip(placed.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    placed.model[0].weight.untyped_storage().resize_(1 << 20)
    placed.model.half().float()
    placed.model(INPUT).sum().backward()
    placed.range.place("again", placed.model[0].weight)


def shared() -> torch.Tensor:
    return torch.ones(4).share_memory_()


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (lambda: torch.empty(4, device="meta"), "'p' lies on meta"),
        (lambda: torch.eye(4).to_sparse(), "'p' is no dense tensor"),
        (lambda: torch.empty(0), "'p' is empty"),
        (lambda: torch.frombuffer(bytearray(16), dtype=torch.float32), "did not allocate for it"),
        (shared, "did not allocate for it alone"),
    ],
)
def test_what_cannot_be_placed_is_refused(tensor: Callable[[], torch.Tensor], words: str) -> None:
    area = make_range()
    with pytest.raises(TypeError, match=words):
        area.place("p", tensor())
    assert area.frames == 0


def test_a_parameter_of_another_range_is_refused() -> None:
    placed = Placed(layers())
    with pytest.raises(TypeError, match="held by another cache"):
        make_range().place("0.weight", placed.model[0].weight)


def test_limits_are_named() -> None:
    from taco_torch.errors import TacoError

    one, two, five = (nn.Parameter(torch.ones(n * FRAME // 4)) for n in (1, 2, 5))
    other, third = nn.Parameter(torch.ones(FRAME // 4)), nn.Parameter(torch.ones(FRAME // 4))
    area = make_range(frames=2, range_frames=4)
    area.place("a", one)
    with pytest.raises(TacoError, match=r"'b': all 2 frames of 64 KiB"):
        area.place("b", two)
    with pytest.raises(TacoError, match="'c' of 327680 bytes does not fit"):
        area.place("c", five)
    area.place("d", other)
    area.evict("a")
    area.place("e", third)
    with pytest.raises(TacoError, match=r"'a': all 2 frames of 64 KiB"):
        area.fetch("a")
    with pytest.raises(RuntimeError, match="'a' is not in memory now"):
        one.sum()
    area.evict("d")
    area.fetch("a")
    assert one.sum() == FRAME // 4


def test_mistaken_names_and_values_are_refused() -> None:
    placed = Placed(layers())
    for call in (placed.range.evict, placed.range.fetch, placed.range.restore):
        with pytest.raises(ValueError, match="there is no parameter 'x' here"):
            call("x")
    with pytest.raises(ValueError, match=r"'0\.weight' is here already"):
        placed.range.place("0.weight", nn.Parameter(torch.ones(2)))
    with pytest.raises(ValueError, match="4096 bytes of storage; 4 contiguous"):
        placed.range.write("0.weight", torch.ones(1))


def another_storage(parameter: nn.Parameter) -> None:
    parameter.data = torch.zeros(32, 32)


def share(parameter: nn.Parameter) -> None:
    parameter.data.share_memory_()


def send(parameter: nn.Parameter) -> None:
    ForkingPickler.dumps(parameter.detach())


@pytest.mark.parametrize("give", [another_storage, share, send])
def test_a_parameter_that_was_given_other_memory_is_named(
    give: Callable[[nn.Parameter], None],
) -> None:
    placed = Placed(layers())
    parameter = placed.model[0].weight
    give(parameter)
    with pytest.raises(ValueError, match=r"'0.weight' has been given (another storage|other mem)"):
        placed.range.evict("0.weight")
    assert parameter.sum() is not None


def test_a_converted_model_is_named() -> None:
    placed = Placed(layers())
    placed.model.half()
    with pytest.raises(ValueError, match=r"has been given another storage .*half"):
        placed.range.evict("0.weight")


def test_a_placed_storage_cannot_be_resized() -> None:
    placed = Placed(layers())
    with pytest.raises(RuntimeError, match="resizable"):
        placed.model[0].weight.untyped_storage().resize_(1 << 20)
