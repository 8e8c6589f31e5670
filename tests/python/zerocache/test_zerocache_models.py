"""Models of Hugging Face transformers, built from tiny configurations, several times their cap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import taco_only
from marks import whole
from parameter_range import FRAME, PAGE, assert_same_results
from torch import Tensor, nn

pytestmark = taco_only

TOKENS = torch.randint(2, 60, (2, 12), generator=torch.Generator().manual_seed(0))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=4, n_head=2, bos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=3, num_heads=2
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
    )
    return transformers.BertForMaskedLM(config)


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=32,
        output_router_logits=True,
    )
    return transformers.MixtralForCausalLM(config)


MODELS = [gpt2, t5, bert, mixtral]


def step(model: Any) -> Tensor:
    output = model(input_ids=TOKENS, labels=TOKENS)
    output.loss.backward()
    return output.loss


def room(make: Callable[[], nn.Module], unit: int) -> int:
    """For the largest module and one more parameter."""
    return 1 + max(
        sum(-(-p.nbytes // unit) for p in module.parameters(recurse=False))
        for module in make().modules()
    )


@pytest.fixture
def small(hold: Callable[[int, int], Any]) -> Callable[..., Any]:
    """Puts a model where there is little more room than its largest module needs."""

    def holder(make: Callable[[], nn.Module], more: int = 0) -> Any:
        frames = room(make, FRAME)
        assert 4 * frames < len(list(make().parameters()))
        return hold(frames + more, room(make, PAGE) + more)

    return holder


@pytest.mark.parametrize("make", MODELS)
def test_steps_of_transformers_have_the_same_bits(
    make: Callable[[], nn.Module], small: Callable[..., Any]
) -> None:
    """Dropout is on: it draws the same numbers, whatever is moved in between."""
    assert_same_results(make, lambda model: [step(model), step(model)], small(make))


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("make", MODELS)
def test_checkpointed_transformers_have_the_same_bits(
    make: Callable[[], nn.Module], reentrant: bool, small: Callable[..., Any]
) -> None:
    def run(model: Any) -> list[Tensor]:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        return [step(model)]

    assert_same_results(make, run, small(make, more=2))


@pytest.mark.parametrize("make", [gpt2, t5, mixtral])
def test_text_is_generated_between_steps(
    make: Callable[[], nn.Module], small: Callable[..., Any]
) -> None:
    def run(model: Any) -> list[Tensor]:
        before = step(model)
        model.eval()
        made = model.generate(TOKENS[:, :4], max_new_tokens=5, do_sample=False, pad_token_id=0)
        model.train()
        return [before, made, step(model)]

    assert_same_results(make, run, small(make))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """With an epsilon above the noise of gradients that are zero but for rounding, those of the
    biases of keys."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


@contextmanager
def cached(
    make: Callable[[], nn.Module], directory: Path, **options: bool
) -> Iterator[tuple[Any, Any, Any]]:
    """Cache, model and optimizer, where hardly more than one module's parameters fit."""
    from taco_torch.zerocache import ZeroCache

    pages = room(make, PAGE) + bool(options)
    with ZeroCache(pages * PAGE, 6 * PAGE, f"{directory}:64MiB", page=PAGE, _poison=True) as cache:
        torch.manual_seed(0)
        model = make()
        yield cache, *cache.wrap(model, adamw(model), **options)
        ways = cache.stats()["ways"]
        assert ways["ssd to host"]["bytes"] > 0
        assert ways["host to ssd"]["bytes"] > 0


def in_memory(make: Callable[[], nn.Module]) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = make()
    return model, adamw(model)


def trained(model: Any, optimizer: torch.optim.Optimizer, steps: int = 5) -> list[float]:
    torch.manual_seed(1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
    losses = []
    for _ in range(steps):
        losses.append(step(model).item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


def assert_same_model(cache: Any, model: nn.Module, plain: nn.Module) -> None:
    """Fused steps round otherwise than torch's."""
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(cache.full(parameter), other.detach(), msg=name)


@pytest.mark.parametrize("make", MODELS)
def test_transformers_learn_the_same(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    plain, optimizer = in_memory(make)
    expected = trained(plain, optimizer)
    assert expected[-1] < expected[0]
    with cached(make, tmp_path) as (cache, model, optimizer):
        assert trained(model, optimizer) == pytest.approx(expected, rel=1e-5)
        assert_same_model(cache, model, plain)


def clipped_by(clip: Callable[[], object], model: Any, optimizer: Any) -> list[float]:
    torch.manual_seed(1)
    losses = []
    for _ in range(5):
        losses.append(step(model).item())
        clip()
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("clipping", [False, True])
@pytest.mark.parametrize("make", [gpt2, whole(t5), bert, whole(mixtral)])
def test_steps_in_backward_of_transformers_have_the_same_bits(
    make: Callable[[], nn.Module], clipping: bool, tmp_path: Path
) -> None:
    folders = [tmp_path / "usual", tmp_path / "early"]
    for folder in folders:
        folder.mkdir()
    with cached(make, folders[0]) as (cache, model, optimizer):
        by_torch = partial(nn.utils.clip_grad_norm_, list(model.parameters()), 0.5)
        losses = clipped_by(by_torch if clipping else int, model, optimizer)
        parameters = {name: cache.full(name) for name in optimizer.numbers()}
    options = {"step_in_backward": True, "clipping": clipping}
    with cached(make, folders[1], **options) as (cache, model, optimizer):
        by_cache = partial(cache.clip_grad_norm_, 0.5)
        assert clipped_by(by_cache if clipping else int, model, optimizer) == losses
        assert optimizer.numbers().keys() == parameters.keys()
        for name, values in parameters.items():
            assert torch.equal(cache.full(name), values), name
    assert losses[-1] < losses[0]


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(2, 60, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def losses_of_trainer(model: Any, optimizer: Any, folder: Path, **options: Any) -> list[float]:
    arguments = transformers.TrainingArguments(
        str(folder),
        **{"gradient_accumulation_steps": 2, **options},
        per_device_train_batch_size=2,
        max_steps=4,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=Texts(),
        eval_dataset=Texts(),
        optimizers=(optimizer, scheduler),
    )
    trainer.train()
    history = trainer.state.log_history
    keys = ("loss", "eval_loss", "grad_norm")
    return [entry[key] for entry in history for key in keys if key in entry]


def test_the_trainer_of_transformers_learns_the_same(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="comes with the pinned torch alone")
    plain, optimizer = in_memory(gpt2)
    expected = losses_of_trainer(plain, optimizer, tmp_path / "plain")
    assert len(expected) == 10
    pages = tmp_path / "pages"
    pages.mkdir()
    with cached(gpt2, pages) as (cache, model, optimizer):
        got = losses_of_trainer(model, optimizer, tmp_path / "cached")
        assert got == pytest.approx(expected, rel=1e-4)
        assert_same_model(cache, model, plain)


def test_the_trainer_of_transformers_steps_in_backward_where_it_does_not_clip(
    tmp_path: Path,
) -> None:
    pytest.importorskip("accelerate", reason="comes with the pinned torch alone")
    once = {"max_grad_norm": 0.0, "gradient_accumulation_steps": 1}
    plain, optimizer = in_memory(gpt2)
    expected = losses_of_trainer(plain, optimizer, tmp_path / "plain", **once)
    pages = tmp_path / "pages"
    pages.mkdir()
    with cached(gpt2, pages, step_in_backward=True) as (cache, model, optimizer):
        got = losses_of_trainer(model, optimizer, tmp_path / "cached", **once)
        assert got == pytest.approx(expected, rel=1e-4)
        assert_same_model(cache, model, plain)


def losses_of_accelerate(model: Any, optimizer: Any) -> list[float]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    torch.manual_seed(1)
    losses = []
    for batch in [*loader, *loader]:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_accelerate_learns_the_same(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="comes with the pinned torch alone")
    plain, optimizer = in_memory(gpt2)
    expected = losses_of_accelerate(plain, optimizer)
    assert len(expected) == 8
    with cached(gpt2, tmp_path) as (cache, model, optimizer):
        got = losses_of_accelerate(model, optimizer)
        assert got == pytest.approx(expected, rel=1e-5)
        assert_same_model(cache, model, plain)
