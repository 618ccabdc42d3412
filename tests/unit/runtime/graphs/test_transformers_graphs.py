"""Models of ``transformers`` as graphs: gradients are autograd's, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.graph_runs import run, same

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOKENS = torch.arange(14).view(2, 7) % 64
MASK = torch.ones(7, 7, dtype=torch.bool).tril().expand(2, 1, 7, 7).contiguous()
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
EXPERTS = {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 32}
T5 = {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "d_kv": 8, "vocab_size": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SMALL),
    "llama, tied": ("Llama", {**SMALL, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**SMALL, "head_dim": 8}),
    "gemma2": ("Gemma2", {**SMALL, "head_dim": 8}),
    "gpt2, with dropout and ties": ("GPT2", GPT2),
    "mixtral, batched": ("Mixtral", {**EXPERTS, "experts_implementation": "batched_mm"}),
    "mixtral, grouped": ("Mixtral", {**EXPERTS, "experts_implementation": "grouped_mm"}),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """With several, rows that are gathered twice get their gradients in any order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cross_entropy(output: Any, _: Any) -> Tensor:
    return functional.cross_entropy(output.logits.flatten(0, 1), TOKENS.flatten())


@pytest.mark.parametrize("name", MODELS)
def test_causal_models(name: str) -> None:
    kind, settings = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    # a mask of its own: that of the model is made by looking at values
    options = {"attention_mask": MASK, "use_cache": False}
    wanted = run(model, TOKENS, options=options, loss=cross_entropy)
    found = run(model, TOKENS, options=options, loss=cross_entropy, stages_as="aten", split=True)
    assert found.refusal is None
    assert same(found, wanted) == []
    assert found.in_b <= 0.012  # a fused norm's weights, of a model this small


def test_an_encoder_with_dropout() -> None:
    torch.manual_seed(0)
    model = transformers.T5EncoderModel(transformers.T5Config(**T5)).train()

    def loss(output: Any, _: Any) -> Tensor:
        return output.last_hidden_state.square().mean()  # type: ignore[no-any-return]

    wanted = run(model, TOKENS, loss=loss)
    found = run(model, TOKENS, loss=loss, stages_as="aten", split=True)
    assert found.refusal is None
    assert same(found, wanted) == []
    assert found.in_b == 0.0
