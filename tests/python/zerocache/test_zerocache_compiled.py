"""Models that torch.compile compiles after wrap(): as few graphs as without a cache, which learn
the same, and cuts only where a graph's parameters do not fit on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import taco_only
from marks import whole
from torch import nn
from torch.utils.checkpoint import checkpoint
from zerocache_models import PAGE, TinyGPT, adamw, batches, make_cache

pytestmark = [
    taco_only,
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace"),
]
BACKEND = "aot_eager"
LAYERS = 3


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pages_of(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters()) // PAGE + 1


def losses(run: Callable[..., Any], optimizer: Any, steps: int = 3) -> list[float]:
    found, data = [], batches()
    for _ in range(steps):
        tokens = next(data)
        loss = run(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            found += [loss.item(), run(tokens).item()]
    return found


class Counting:
    """A backend that counts the graphs it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, _: Any) -> Any:
        self.graphs += 1
        return module.forward


def expected_losses(compile_: Callable[[nn.Module], Callable[..., Any]], folder: Path) -> Any:
    """Losses of the same model, not compiled, in a cache that holds all of it."""
    model = TinyGPT(LAYERS)
    with make_cache(folder, device=200, host=200) as cache:
        _, optimizer = cache.wrap(model, adamw(model))
        return losses(compile_(model), optimizer)


def test_a_model_is_one_graph_as_it_is_without_a_cache(tmp_path: Path) -> None:
    expected = expected_losses(lambda model: model, tmp_path / "plain")
    counting, model = Counting(), TinyGPT(LAYERS)
    with make_cache(tmp_path / "cache", device=pages_of(model) + 8, host=8) as cache:
        _, optimizer = cache.wrap(model, adamw(model))
        compiled = torch.compile(model, backend=counting, fullgraph=True)
        assert losses(compiled, optimizer) == expected
        assert counting.graphs == 2  # with gradients, and without
        assert torch._dynamo.explain(model)(next(batches())).graph_break_count == 0


@pytest.mark.parametrize("early", [{}, {"step_in_backward": True}])
def test_a_model_that_does_not_fit_is_cut_at_its_modules(
    early: dict[str, bool], tmp_path: Path
) -> None:
    expected = expected_losses(lambda model: model, tmp_path / "plain")
    model = TinyGPT(LAYERS)
    device = pages_of(model) // 2
    with make_cache(tmp_path / "cache", device=device, host=10) as cache:
        _, optimizer = cache.wrap(model, adamw(model), **early)
        assert losses(torch.compile(model, backend=Counting()), optimizer) == expected
        assert cache.stats()["tiers"]["device"]["resident"] <= device * PAGE


def test_blocks_that_are_compiled_one_by_one_are_a_graph_each(tmp_path: Path) -> None:
    def in_blocks(model: Any) -> Any:
        for block in model.blocks:
            block.compile(backend=BACKEND, fullgraph=True)
        return model

    expected = expected_losses(lambda model: model, tmp_path / "plain")
    model = TinyGPT(LAYERS)
    assert pages_of(model.blocks[0]) + 4 <= pages_of(model) // 2
    with make_cache(tmp_path / "cache", device=pages_of(model) // 2, host=10) as cache:
        _, optimizer = cache.wrap(model, adamw(model))
        assert losses(in_blocks(model), optimizer) == expected


class Checkpointed(TinyGPT):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


def test_activations_are_computed_again_inside_of_a_graph(tmp_path: Path) -> None:
    expected = expected_losses(lambda model: model, tmp_path / "plain")
    model = Checkpointed(LAYERS)
    with make_cache(tmp_path / "cache", device=pages_of(model) + 8, host=8) as cache:
        _, optimizer = cache.wrap(model, adamw(model))
        compiled = torch.compile(model, backend=BACKEND, fullgraph=True)
        assert losses(compiled, optimizer) == pytest.approx(expected, rel=1e-6)


def test_graphs_of_a_cache_that_is_closed_run_on_ordinary_memory(tmp_path: Path) -> None:
    model = TinyGPT(LAYERS)
    tokens = next(batches())
    cache = make_cache(tmp_path, device=pages_of(model) + 8, host=8)
    cache.wrap(model, adamw(model))
    compiled = torch.compile(model, backend=BACKEND)
    inside = compiled(tokens)
    cache.close()
    assert compiled(tokens).item() == inside.item()
    compiled(tokens).backward()


@pytest.mark.parametrize("name", [whole("gpt2"), "bert"])
def test_graphs_of_transformers_break_no_more_often_than_in_torch(
    name: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
    if name == "gpt2":
        config = transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=1)
        model = transformers.GPT2LMHeadModel(config)
    else:
        model = transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=64,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
            )
        )
    tokens = torch.arange(24).reshape(2, 12)

    def breaks() -> int:
        torch._dynamo.reset()
        explained = torch._dynamo.explain(model)(input_ids=tokens, labels=tokens)
        return int(explained.graph_break_count)

    in_torch = breaks()
    with make_cache(tmp_path, device=pages_of(model) + 60, host=60) as cache:
        cache.wrap(model, adamw(model))
        assert breaks() == in_torch
