"""torch.distributed.checkpoint carries a model and its state to plain torch and back, one tensor at
a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import zerocache_ranks as on_ranks
from conftest import taco_only
from spawn_ranks import Ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from zerocache_models import TinyGPT, adamw, batches, make_cache, train

pytestmark = taco_only

SMALL = (12, 12, 400)


def wrapped(
    folder: Path, model: nn.Module | None = None, make: Any = adamw
) -> tuple[Any, Any, Any]:
    folder.mkdir(exist_ok=True)
    model = model or TinyGPT(2)
    cache = make_cache(folder, *SMALL)
    return cache, *cache.wrap(model, make(model) if make is not None else None)


def state_of(cache: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    found = {name: cache.full(name) for name in cache._names.values()}
    for i, entry in optimizer.state_dict()["state"].items():
        found.update({f"{i}/{kind}": value for kind, value in entry.items()})
    return found


def check_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("make", on_ranks.MAKES.values(), ids=list(on_ranks.MAKES))
def test_a_cache_goes_on_from_what_another_has_saved(tmp_path: Path, make: Any) -> None:
    from taco_torch.zerocache import distributed_checkpoint

    cache, model, optimizer = wrapped(tmp_path / "one", on_ranks.mixed_model(), make)
    data = batches()
    train(model, optimizer, 2, data)
    optimizer.param_groups[0]["lr"] = 3e-3
    distributed_checkpoint.save(cache, tmp_path / "saved")
    other, same, same_optimizer = wrapped(tmp_path / "other", on_ranks.mixed_model(), make)
    train(same, same_optimizer, 1, batches(7))
    distributed_checkpoint.load(other, tmp_path / "saved")
    check_same(state_of(other, same_optimizer), state_of(cache, optimizer))
    assert same_optimizer.param_groups[0]["lr"] == 3e-3
    tokens = [next(data) for _ in range(2)]
    assert train(same, same_optimizer, 2, iter(tokens)) == train(model, optimizer, 2, iter(tokens))
    for each in (cache, other):
        each.close()


def plain_state(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def test_it_is_plain_torchs_checkpoint_both_ways(tmp_path: Path) -> None:
    from taco_torch.zerocache import distributed_checkpoint

    plain = TinyGPT(2)
    plain_optimizer = adamw(plain)
    cache, model, optimizer = wrapped(tmp_path / "cache")
    data = batches()
    train(model, optimizer, 2, data)
    distributed_checkpoint.save(cache, tmp_path / "out")
    found = plain_state(plain, plain_optimizer)
    dcp.load(found, checkpoint_id=tmp_path / "out")
    set_state_dict(
        plain,
        plain_optimizer,
        model_state_dict=found["model"],
        optim_state_dict=found["optimizer"],
    )
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, cache.full(name)), name
    for mine, theirs in zip(
        optimizer.state_dict()["state"].values(),
        plain_optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        check_same(mine, theirs)
    # Back, after steps of plain torch.
    train(plain, plain_optimizer, 2, data)
    dcp.save(plain_state(plain, plain_optimizer), checkpoint_id=tmp_path / "in")
    distributed_checkpoint.load(cache, tmp_path / "in")
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, cache.full(name)), name
    assert set(optimizer.numbers().values()) == {4}
    expected = train(plain, plain_optimizer, 2, batches(5))
    assert train(model, optimizer, 2, batches(5)) == pytest.approx(expected, rel=1e-4)
    cache.close()


class Counted(TinyGPT):
    """With a buffer, and state of its own."""

    def __init__(self) -> None:
        super().__init__(2)
        self.register_buffer("seen", torch.zeros(3))
        self.note = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"note": self.note}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.note = state["note"]


def test_buffers_extra_states_and_what_has_not_been_stepped(tmp_path: Path) -> None:
    from taco_torch.zerocache import distributed_checkpoint

    cache, model, optimizer = wrapped(tmp_path / "one", Counted())
    model.seen += 2
    model.note = 5
    distributed_checkpoint.save(cache, tmp_path / "saved")
    other, same, same_optimizer = wrapped(tmp_path / "other", Counted())
    train(same, same_optimizer, 2)
    distributed_checkpoint.load(other, tmp_path / "saved")
    assert torch.equal(same.seen, torch.full((3,), 2.0))
    assert same.note == 5
    assert same_optimizer.numbers() == {}
    assert train(same, same_optimizer, 2) == train(model, optimizer, 2)
    for each in (cache, other):
        each.close()


def test_one_tensor_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: Any) -> None:
    """Where no copy of all of it would fit."""
    from taco_torch.zerocache import distributed_checkpoint, memory

    cache, model, optimizer = wrapped(tmp_path / "cache")
    train(model, optimizer, 1)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(MemoryError):
        optimizer.state_dict()
    held, most = [0], [0]
    read = distributed_checkpoint.StandIns.read

    def counted(self: Any, place: Any) -> torch.Tensor:
        values = read(self, place)
        held[0] += 1
        most[0] = max(most[0], held[0])
        import weakref

        weakref.finalize(values, lambda: held.__setitem__(0, held[0] - 1))
        return values

    monkeypatch.setattr(distributed_checkpoint.StandIns, "read", counted)
    distributed_checkpoint.save(cache, tmp_path / "saved")
    assert 0 < most[0] <= 2  # one that is being written, and the next
    distributed_checkpoint.load(cache, tmp_path / "saved")
    cache.close()


class WithoutBias(TinyGPT):
    def __init__(self) -> None:
        super().__init__(2)
        self.norm = nn.LayerNorm(self.norm.normalized_shape[0], bias=False)


def test_a_checkpoint_that_lacks_a_parameter_is_torchs_to_refuse(tmp_path: Path) -> None:
    from taco_torch.zerocache import distributed_checkpoint

    cache, _, _ = wrapped(tmp_path / "cache", WithoutBias(), None)
    distributed_checkpoint.save(cache, tmp_path / "saved")
    other, _, _ = wrapped(tmp_path / "other", TinyGPT(2), None)
    before = {name: other.full(name) for name in other._names.values()}
    with pytest.raises(dcp.api.CheckpointException, match=r"model\.norm\.bias"):
        distributed_checkpoint.load(other, tmp_path / "saved")
    check_same({name: other.full(name) for name in other._names.values()}, before)
    for each in (cache, other):
        each.close()


def test_what_does_not_fit_is_refused_before_anything_changes(tmp_path: Path) -> None:
    from taco_torch.zerocache import distributed_checkpoint

    cache, model, optimizer = wrapped(tmp_path / "cache")
    with pytest.raises(ValueError, match="nothing' has no checkpoint"):
        distributed_checkpoint.load(cache, tmp_path / "nothing")
    train(model, optimizer, 1)
    distributed_checkpoint.save(cache, tmp_path / "saved")
    before = state_of(cache, optimizer)
    others = [
        (wrapped(tmp_path / "larger", TinyGPT(3)), "groups of other parameters"),
        (wrapped(tmp_path / "sgd", TinyGPT(2), on_ranks.sgd), "keeps.*momentum_buffer"),
        (wrapped(tmp_path / "alone", TinyGPT(2), None), ""),
    ]
    for (other, *_), words in others:
        values = {name: other.full(name) for name in other._names.values()}
        if words:
            with pytest.raises(ValueError, match=words):
                distributed_checkpoint.load(other, tmp_path / "saved")
        else:
            distributed_checkpoint.load(other, tmp_path / "saved")  # the model alone
            values = {name: cache.full(name) for name in cache._names.values()}
        check_same({name: other.full(name) for name in other._names.values()}, values)
        other.close()
    check_same(state_of(cache, optimizer), before)
    cache.close()
    with pytest.raises(RuntimeError, match="closed"):
        distributed_checkpoint.save(cache, tmp_path / "saved")


def refuse(folder: str) -> list[tuple[str, str]]:
    from taco_torch.zerocache import distributed_checkpoint

    cache, _, _ = on_ranks.shared(folder, TinyGPT(2), adamw)
    found = [
        on_ranks.refused(lambda: distributed_checkpoint.save(cache, folder)),
        on_ranks.refused(lambda: distributed_checkpoint.load(cache, folder)),
    ]
    cache.close()
    return found


def test_ranks_are_told_what_saves_together(two: Ranks, tmp_path: Path) -> None:
    for found in two.run(refuse, str(tmp_path)):
        for (kind, text), call in zip(found, ("save", "load"), strict=True):
            assert kind == "NotImplementedError"
            assert f"ZeroCache.{call}()" in text
