"""Parameter counts against those of transformers' models, built on meta tensors."""

from __future__ import annotations

from typing import Any

import pytest

from pipeloom import arithmetic
from pipeloom.planner import PRESETS

hugging = pytest.importorskip("transformers")

FEW = {"num_hidden_layers": 3}
HEADS = {"num_attention_heads": 64, "num_hidden_layers": 2}
FEWER_LAYERS = (
    *("llama-2-70b", "llama-3.2-1b", "mistral-7b", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-8b"),
    *("gemma-2b", "gemma-2-9b", "gemma-3-1b", "gpt-neox-20b", "opt-350m", "mixtral-8x7b"),
    *("deepseek-v2-lite", "gpt-oss-20b"),
)
CHANGED: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, FEW) for name in FEWER_LAYERS),
    ("llama-3-8b", FEW | {"attention_bias": True, "mlp_bias": True}),
    ("qwen3-32b", FEW | {"attention_bias": True}),
    ("gpt2", {}),
    ("gpt2-xl", {"n_layer": 3}),
    ("opt-125m", {}),
    ("qwen1.5-moe-a2.7b", FEW | {"mlp_only_layers": [1]}),
    ("qwen3-30b-a3b", FEW | {"decoder_sparse_step": 2}),
    ("deepseek-v3", {"num_hidden_layers": 4}),
)
IGNORED: tuple[dict[str, Any], ...] = (
    {"model_type": "qwen2", **HEADS},
    {"model_type": "qwen3", **HEADS},
    {"model_type": "gemma", **HEADS},
    {"model_type": "qwen2_moe", **HEADS, "num_experts": 4},
    {"model_type": "mistral", **FEW, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", **FEW, "num_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 8},
    {"model_type": "mixtral", **FEW, "moe_intermediate_size": 96, "decoder_sparse_step": 2},
    {"model_type": "gpt2", "n_layer": 2, "n_ctx": 77, "head_dim": 48, "num_key_value_heads": 2},
    {"model_type": "gpt_neox", **FEW, "num_key_value_heads": 2, "mlp_bias": False},
    {"model_type": "opt", **FEW, "layer_norm_elementwise_affine": False, "intermediate_size": 9},
    {"model_type": "qwen2_moe", **FEW, "num_experts": 0},
    {"model_type": "qwen3_moe", **FEW, "num_experts": 0, "first_k_dense_replace": 2},
    {"model_type": "gpt_oss", **FEW, "num_local_experts": 4, "n_shared_experts": 3},
    {"model_type": "deepseek_v2", **FEW, "num_experts_per_tok": 6, "moe_layer_freq": 2},
    {"model_type": "deepseek_v3", **FEW, "mlp_bias": True, "shared_expert_intermediate_size": 7},
)
"""Defaults, and keys that a type does not have."""
ALL = [*((name, PRESETS[name] | more) for name, more in CHANGED)]
ALL += [(words["model_type"], words) for words in IGNORED]


@pytest.mark.parametrize("words", [words for _, words in ALL], ids=[name for name, _ in ALL])
def test_parameters_are_those_of_the_model_itself(words: dict[str, Any]) -> None:
    import torch

    config = hugging.AutoConfig.for_model(**words)
    with torch.device("meta"):
        built = hugging.AutoModelForCausalLM.from_config(config)
    expected = sum(parameter.numel() for parameter in built.parameters())
    assert arithmetic(words).parameters == expected
    whole = words if words in IGNORED else config.to_dict()  # a file of transformers has all
    assert arithmetic(whole).parameters == expected


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-405b", 405_853_388_800),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v3", 671_026_404_352),
        ("gpt-oss-120b", 116_829_156_672),
    ],
)
def test_whole_presets_have_the_published_counts(preset: str, count: int) -> None:
    assert arithmetic(preset).parameters == count
