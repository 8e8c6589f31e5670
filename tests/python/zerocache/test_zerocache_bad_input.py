"""ZeroCache's errors on mistakes, after which it has changed nothing."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from torch import nn
from zerocache_models import TinyGPT, adamw, batches, make_cache, train

pytestmark = taco_only


def cache_of(*args: Any, **options: Any) -> Any:
    from taco_torch.zerocache import ZeroCache

    return ZeroCache(*args, **options)


@pytest.mark.parametrize(
    ("size", "count"),
    [("2GiB", 2 << 30), ("1.5 MiB", 3 << 19), ("2gb", 2 * 10**9), ("4096", 4096), (12345, 12345)],
)
def test_sizes(size: str | int, count: int) -> None:
    from taco_torch.zerocache.sizes import parse_bytes

    assert parse_bytes(size, "device") == count


@pytest.mark.parametrize("size", ["", "2 gallons", "GiB", "-1GiB", "1e3", "0", 0, -5])
def test_what_is_no_size_is_shown_a_size(size: str | int) -> None:
    with pytest.raises(ValueError, match=r"device=.*(such as|more than 0)"):
        cache_of(size, "1MiB")


def test_what_is_not_even_text() -> None:
    for size in (None, 1.5, True, b"2GiB"):
        with pytest.raises(TypeError, match=r"host=.*is no size"):
            cache_of("1MiB", size)
    with pytest.raises(TypeError, match="ssd"):
        cache_of("1MiB", "1MiB", 7)


def test_what_no_machine_has() -> None:
    with pytest.raises(ValueError, match="device='99999999999TiB' is more than can be addressed"):
        cache_of("99999999999TiB", "1MiB")


def test_directories(tmp_path: Path) -> None:
    from taco_torch.zerocache.sizes import parse_directories

    assert parse_directories("/a:b:1MiB") == [("/a:b", 1 << 20)]
    assert parse_directories(["/a:1KiB", "/b:2KiB"]) == [("/a", 1024), ("/b", 2048)]
    for text in ("/data/cache", "/data/cache:", ":64GiB"):
        with pytest.raises(ValueError, match=r'such as "/?.*:64GiB"'):
            parse_directories(text)
    with pytest.raises(ValueError, match="named twice"):
        parse_directories([f"{tmp_path}:1MiB", f"{tmp_path}/.:1MiB"])


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'.*missing' does not exist: make it"):
        cache_of("16MiB", "16MiB", f"{tmp_path / 'missing'}:64MiB")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="file"):
        cache_of("16MiB", "16MiB", f"{file}:64MiB")
    too_much = shutil.disk_usage(tmp_path).free + (1 << 30)
    with pytest.raises(RuntimeError, match=r"(?i)space|room|free"):
        cache_of("16MiB", "16MiB", f"{tmp_path}:{too_much}")
    with pytest.raises(RuntimeError, match="device, host and ssd are too large"):
        cache_of("16MiB", "16MiB", f"{tmp_path}:900TiB")
    with pytest.raises(ValueError, match="page"):
        cache_of("16MiB", "16MiB", f"{tmp_path}:1KiB")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=str(tmp_path)):
        cache_of("16MiB", "16MiB", f"{tmp_path}:64MiB")


def test_a_file_system_that_is_read_only(tmp_path: Path) -> None:
    """Nobody may write there, root included: no cache, and no checkpoint."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(ValueError, match=rf"{folder}.*(?i:read-only)"):
            cache_of("16MiB", "16MiB", f"{folder}:64MiB")
        with make_cache(tmp_path / "cache", 12, 12) as cache:
            model = TinyGPT()
            model, optimizer = cache.wrap(model, adamw(model))
            with pytest.raises(ValueError, match=rf"{folder}.*(?i:read-only)"):
                cache.save(folder / "saved")
            train(model, optimizer, 1)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_directory_belongs_to_one_cache_at_a_time(tmp_path: Path) -> None:
    first = cache_of("16MiB", "16MiB", f"{tmp_path}:64MiB")
    with pytest.raises(ValueError, match=str(os.getpid())):
        cache_of("16MiB", "16MiB", f"{tmp_path}:64MiB")
    program = (
        "from taco_torch.zerocache import ZeroCache\n"
        f"ZeroCache('16MiB', '16MiB', '{tmp_path}:64MiB')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert f"process {os.getpid()}" in done.stderr
    first.close()
    cache_of("16MiB", "16MiB", f"{tmp_path}:64MiB").close()


def test_options_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"io='pigeons'.*io_uring"):
        cache_of("16MiB", "16MiB", io="pigeons")
    with pytest.raises(ValueError, match="threads=0"):
        cache_of("16MiB", "16MiB", threads=0)
    for options, text in (
        ({"io": None}, "io=None is no text"),
        ({"threads": "two"}, "threads='two' is no whole number"),
        ({"threads": 1.5}, r"threads=1\.5 is no whole number"),
    ):
        with pytest.raises(TypeError, match=text):
            cache_of("16MiB", "16MiB", **options)
    with pytest.raises(ValueError, match="page"):
        cache_of("16MiB", "16MiB", page="3MiB")
    with pytest.raises(ValueError, match="device memory is smaller than a page"):
        cache_of("1MiB", "16MiB")
    with pytest.raises(ValueError, match="host memory is smaller than a page"):
        cache_of("16MiB", "1MiB")


def test_caps_that_are_too_small_are_told_with_what_is_needed(tmp_path: Path) -> None:
    model = TinyGPT()
    values = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = adamw(model)
    needs = {(1, 12, 400): "device memory", (12, 2, 400): "host memory", (12, 12, 10): "and disk"}
    for caps, what in needs.items():
        cache = make_cache(tmp_path / "cache", *caps)
        with pytest.raises(ValueError, match=rf"does not fit into the cache: .*{what}.*at least"):
            cache.wrap(model, optimizer)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, values[name])
        assert not cache.closed
        cache.close()
    cache = make_cache(tmp_path / "cache", 12, 12)
    model, optimizer = cache.wrap(model, optimizer)  # it was not spoilt
    train(model, optimizer, 1)
    cache.close()


def refused(model: nn.Module, optimizer: Any, error: type[Exception], text: str) -> None:
    cache = make_cache(None)
    with pytest.raises(error, match=text):
        cache.wrap(model, optimizer)
    assert not cache.closed
    cache.close()


def line() -> nn.Linear:
    return nn.Linear(4, 4)


def test_optimizers_that_are_not_known_are_refused_by_name() -> None:
    class Mine(torch.optim.AdamW):
        pass

    model = line()
    with_state = model.parameters
    refused(model, torch.optim.RMSprop(with_state()), NotImplementedError, "RMSprop.*AdamW, Adam")
    refused(model, Mine(with_state()), NotImplementedError, "Mine")
    for make, option in [
        (torch.optim.AdamW, "amsgrad"),
        (torch.optim.AdamW, "capturable"),
        (torch.optim.SGD, "differentiable"),
    ]:
        optimizer = make(with_state(), **{option: True})
        refused(model, optimizer, NotImplementedError, rf"{make.__name__}\({option}=True\)")
    refused(model, "AdamW", TypeError, "str is no torch.optim.Optimizer")
    refused("model", adamw(model), TypeError, "str is no torch.nn.Module")  # type: ignore[arg-type]


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    refused(line(), adamw(nn.Linear(7, 5)), ValueError, r"number 0, of shape \(5, 7\)\) that the")


def test_parameters_that_cannot_be_moved_are_named() -> None:
    model = line().double()
    refused(model, adamw(model), TypeError, r"'weight' is torch\.float64")
    model = line().to("meta")
    refused(model, adamw(model), TypeError, "'weight' lies on meta")
    model = line()
    model.weight = nn.Parameter(torch.zeros(2, 4, 4)[0])
    refused(model, adamw(model), TypeError, r"'weight' is a part of a larger piece.*clone\(\)")
    model = line().share_memory()
    refused(model, adamw(model), TypeError, r"'weight' lies in memory .*clone\(\)")
    model = nn.DataParallel(line())
    refused(model, adamw(model), TypeError, "DataParallel copies parameters")


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("kind", ["exp_avg", "master", "row_var"])
def test_a_parameter_that_is_called_as_state_is_named(kind: str, trained: bool) -> None:
    model = nn.Module()
    model.table = nn.ParameterDict({"a": torch.zeros(2), f"a/{kind}": torch.zeros(2)})
    optimizer = adamw(model) if trained else None
    with cache_of("1MiB", "1MiB", page="4KiB") as cache:
        said = rf"^parameter 'table\.a/{kind}' is called as .* 'table\.a' .*another name"
        with pytest.raises(ValueError, match=said):
            cache.wrap(model, optimizer)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
def test_a_name_that_cannot_be_in_messages_is_refused(name: str) -> None:
    model = nn.ModuleDict({name: nn.Linear(4, 4)})
    said = r"^parameter 'a\\.*\.weight' has a character"
    with cache_of("4MiB", "8MiB") as cache, pytest.raises(ValueError, match=said):
        cache.wrap(model)


def test_tensors_without_bytes_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = nn.Linear(4, 4)
    with cache_of("1MiB", "1MiB", page="4KiB") as cache:
        model, optimizer = cache.wrap(model, adamw(model))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        values = cache.full("weight")
        with FakeTensorMode(allow_non_fake_inputs=True):
            for call in (
                partial(cache.full, "weight"),
                partial(cache.full, "weight", torch.zeros(4, 4)),
                optimizer.state_dict,
            ):
                with pytest.raises(ValueError, match="FakeTensorMode"):
                    call()
        assert torch.equal(cache.full("weight"), values)


def test_a_parameter_that_a_group_has_twice_is_named() -> None:
    model = nn.Sequential(line(), line())
    parameters = list(model.parameters())
    twice = torch.optim.AdamW([*parameters, parameters[1]], lr=0.1)
    refused(model, twice, ValueError, r"group 0 has parameter '\S+' 2 times.*give it once")


def test_a_parameter_that_is_replaced_afterwards_is_named() -> None:
    model = nn.Sequential(line(), line())
    cache = make_cache(None)
    model, _ = cache.wrap(model, adamw(model))
    model[1].weight.data = torch.zeros(4, 4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"'1\.weight' has been given another storage"):
        model(torch.zeros(1, 4))
    cache.close()


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(8, 4, sparse=True)
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match=r"'weight' has a sparse gradient.*sparse=False"):
        optimizer.step()
    cache.close()


def test_options_that_change_for_the_worse_are_refused_before_anything_is_stepped() -> None:
    model = line()
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, adamw(model))
    model(torch.ones(1, 4)).sum().backward()
    before = cache.full("weight")
    for option, value, error in [("lr", -1.0, ValueError), ("amsgrad", True, NotImplementedError)]:
        kept = optimizer.param_groups[0][option]
        optimizer.param_groups[0][option] = value
        with pytest.raises(error, match=option):
            optimizer.step()
        optimizer.param_groups[0][option] = kept
    assert torch.equal(cache.full("weight"), before)
    optimizer.step()
    assert not torch.equal(cache.full("weight"), before)
    cache.close()


def test_a_parameter_that_is_put_into_a_group_later_is_refused_before_anything_is_stepped() -> None:
    model = line()
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, adamw(model))
    model(torch.ones(1, 4)).sum().backward()
    before = cache.full("weight")
    late = nn.Parameter(torch.ones(2, 3))
    late.grad = torch.ones(2, 3)
    optimizer.param_groups[0]["params"].append(late)
    with pytest.raises(RuntimeError, match=r"of shape \(2, 3\) was added to a group after"):
        optimizer.step()
    assert torch.equal(cache.full("weight"), before)
    del optimizer.param_groups[0]["params"][-1]
    optimizer.step()
    cache.close()


def test_a_store_refuses_to_step_what_has_no_state_and_steps_nothing() -> None:
    """Its pages have state of its neighbours: all of them, the first, or none."""
    for size, dtype in ((4, torch.float32), (4096, torch.float32), (4, torch.bfloat16)):
        late = nn.Linear(size, 4, bias=False, dtype=dtype)
        model = nn.Sequential(line(), late).requires_grad_(False)
        model[0].requires_grad_(True)
        cache = make_cache(None, 64, 64)
        model, optimizer = cache.wrap(model, adamw(model[0]))
        before = [cache.full(parameter) for parameter in model.parameters()]
        model.requires_grad_(True)
        for parameter in model.parameters():
            parameter.grad = torch.ones(parameter.shape, dtype=parameter.dtype)
        group = optimizer.param_groups[0]
        steps = [
            (p, p.grad, optimizer.rule.constants(group, 1, p, 1.0)) for p in model.parameters()
        ]
        with pytest.raises(ValueError, match=r"'1\.weight' has no (optimizer )?state"):
            cache.store.step(steps)
        for parameter, value in zip(model.parameters(), before, strict=True):
            assert torch.equal(cache.full(parameter), value)
        model[1].weight.grad = None
        optimizer.step()
        assert not torch.equal(cache.full("0.weight"), before[0])
        cache.close()


def test_momentum_that_a_scheduler_sets_after_wrap_is_refused_with_what_to_do() -> None:
    model = line()
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    model(torch.ones(1, 4)).sum().backward()
    before = cache.full("weight")
    with pytest.raises(ValueError, match=r"momentum was 0 at .*above 0 .*cycle_momentum=False"):
        optimizer.step()
    assert torch.equal(cache.full("weight"), before)
    optimizer.param_groups[0]["momentum"] = 0
    optimizer.step()
    cache.close()


def test_an_optimizer_is_not_pickled() -> None:
    model = line()
    cache = make_cache(None)
    model, optimizer = cache.wrap(model, adamw(model))
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"state_dict\(\) .*cache\.save\(\)"):
            copied(optimizer)
    cache.close()


def test_a_model_in_a_cache_is_not_copied() -> None:
    model = nn.Sequential(line(), line())
    with make_cache(None) as cache:
        cache.wrap(model, adamw(model))
        refused = partial(pytest.raises, TypeError, match=r"copy the model before ZeroCache\.wrap")
        for copied in (copy.deepcopy, pickle.dumps):
            for given in (model, cache):
                with refused():
                    copied(given)
            # The first access to parameters says which one is not there.
            with pytest.raises(RuntimeError, match=r"parameter '1\.\w+' is not in memory"):
                copied(model[1])
    assert copy.deepcopy(model)[1] is not model[1]  # closed: it is as any other


class Frozen(nn.Module):
    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        values = torch.zeros(size // dtype.itemsize, dtype=dtype)
        self.values = nn.Parameter(values, requires_grad=False)


def test_dtypes_that_take_turns_do_not_use_up_the_page_numbers() -> None:
    dtypes = (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128)
    page = 4096
    # Each dtype has many pages, and then one more, which begins another such region of pages.
    sizes = [count * page for count in (2500, 1) for _ in dtypes]
    model = nn.Sequential(*map(Frozen, sizes, [*dtypes, *dtypes]))
    cache = cache_of(2600 * page, 9910 * page, page=page)
    cache.wrap(model)
    assert cache.full("9.values").eq(0).all()
    cache.close()


def test_calls_before_wrap_say_so(tmp_path: Path) -> None:
    cache = make_cache(None)
    for call in (
        lambda: cache.full("weight"),
        lambda: cache.save(tmp_path / "saved"),
        lambda: cache.load(tmp_path / "saved"),
        lambda: cache.use(line()).__enter__(),
    ):
        with pytest.raises(RuntimeError, match=r"call wrap\(\) first"):
            call()
    cache.close()
    with pytest.raises(RuntimeError, match="this cache is closed"):
        cache.wrap(line())


def test_parameters_that_a_cache_does_not_have() -> None:
    with make_cache(None) as cache:
        model = line()
        cache.wrap(model, adamw(model))
        for unknown in ("nope", "weight.data", 3):
            with pytest.raises(KeyError, match=rf"{unknown}.*none of the parameters that this"):
                cache.full(unknown)
    with pytest.raises(RuntimeError, match="this cache is closed"), cache.use(model):
        pass


def test_what_cannot_be_saved_is_told_and_the_cache_goes_on(tmp_path: Path) -> None:
    with make_cache(tmp_path / "cache") as cache:
        model = line()
        cache.wrap(model, adamw(model))
        for extra in (lambda: 1, iter([1]), cache):
            with pytest.raises(TypeError, match=r"could not be loaded again: give numbers|copied"):
                cache.save(tmp_path / "saved", extra)
        cache.save(tmp_path / "saved", {"epoch": 1})
        assert cache.load(tmp_path / "saved") == {"epoch": 1}


def test_a_full_disk_in_a_save_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    model = TinyGPT()
    cache = make_cache(tmp_path / "cache", 12, 12)
    model, optimizer = cache.wrap(model, adamw(model))
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)]).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        cache.save(small / "saved")
        train(model, optimizer, 1)
        (small / "ballast").write_bytes(bytes(2 << 20))
        with pytest.raises(RuntimeError, match=r"(?i)no space"):
            cache.save(small / "saved")
        train(model, optimizer, 1)
        cache.load(small / "saved")
        assert len(optimizer.state) == 0
        expected = TinyGPT()
        assert torch.equal(cache.full("places"), expected.places)
        assert model(next(batches())).item() > 0
        cache.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)
