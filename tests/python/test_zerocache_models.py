"""Models of Hugging Face transformers, built from tiny configurations, several times their cap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from conftest import taco_only
from parameter_range import FRAME, assert_same_results
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


def frames_of(make: Callable[[], nn.Module]) -> int:
    """Room for the largest module and for one more parameter; a part of what the model needs."""
    largest, total = 0, 0
    for module in make().modules():
        frames = [-(-p.nbytes // FRAME) for p in module.parameters(recurse=False)]
        largest, total = max(largest, sum(frames)), total + sum(frames)
    assert 4 * (largest + 1) < total
    return largest + 1


@pytest.mark.parametrize("make", MODELS)
def test_steps_of_transformers_have_the_same_bits(make: Callable[[], nn.Module]) -> None:
    """Dropout is on: it draws the same numbers, whatever is moved in between."""
    assert_same_results(make, lambda model: [step(model), step(model)], frames_of(make))


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("make", MODELS)
def test_checkpointed_transformers_have_the_same_bits(
    make: Callable[[], nn.Module], reentrant: bool
) -> None:
    def run(model: Any) -> list[Tensor]:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        return [step(model)]

    assert_same_results(make, run, frames_of(make) + 2)


@pytest.mark.parametrize("make", [gpt2, t5, mixtral])
def test_text_is_generated_between_steps(make: Callable[[], nn.Module]) -> None:
    def run(model: Any) -> list[Tensor]:
        before = step(model)
        model.eval()
        made = model.generate(TOKENS[:, :4], max_new_tokens=5, do_sample=False, pad_token_id=0)
        model.train()
        return [before, made, step(model)]

    assert_same_results(make, run, frames_of(make))
