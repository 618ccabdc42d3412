"""Parameter counts against those of transformers' models, built on meta tensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.inner import PRESETS, TrainingRun, WorkKind, read_model, work_of

hugging = pytest.importorskip("transformers")

FEW = {"num_hidden_layers": 3}
# a preset, and what of it is changed: fewer layers where building all of them takes long
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-2-70b", FEW),
    ("llama-3.2-1b", FEW),
    ("llama-3-8b", FEW | {"attention_bias": True, "mlp_bias": True}),
    ("mistral-7b", FEW),
    ("qwen2.5-0.5b", FEW),
    ("qwen2.5-7b", FEW),
    ("qwen3-8b", FEW),
    ("qwen3-32b", FEW | {"attention_bias": True}),
    ("gemma-2b", FEW),
    ("gemma-2-9b", FEW),
    ("gemma-3-1b", FEW),
    ("gpt2", {}),
    ("gpt2-xl", {"n_layer": 3}),
    ("gpt-neox-20b", FEW),
    ("opt-125m", {}),
    ("opt-350m", FEW),
    ("mixtral-8x7b", FEW),
    ("qwen1.5-moe-a2.7b", FEW | {"mlp_only_layers": [1]}),
    ("qwen3-30b-a3b", FEW | {"decoder_sparse_step": 2}),
    ("deepseek-v2-lite", FEW),
    ("deepseek-v3", {"num_hidden_layers": 4}),
    ("gpt-oss-20b", FEW),
)


@pytest.mark.parametrize(("preset", "changes"), CASES, ids=[name for name, _ in CASES])
def test_parameters_are_those_of_the_model_itself(preset: str, changes: dict[str, Any]) -> None:
    import torch

    words = PRESETS[preset] | changes
    config = hugging.AutoConfig.for_model(**words)
    with torch.device("meta"):
        built = hugging.AutoModelForCausalLM.from_config(config)
    expected = sum(parameter.numel() for parameter in built.parameters())
    assert _count(words) == expected
    assert _count(config.to_dict()) == expected  # with all that a file of transformers has


def _count(words: dict[str, Any]) -> int:
    model = read_model(words)
    layers = work_of(model, TrainingRun.of({}, model)).layers
    return sum(x.parameters.total for x in layers if x.kind is not WorkKind.MTP)


PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_whole_presets_have_the_published_counts(preset: str) -> None:
    assert _count(PRESETS[preset]) == PUBLISHED[preset]


HEADS = {"num_attention_heads": 64, "num_hidden_layers": 2}
UNREAD: tuple[dict[str, Any], ...] = (
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


@pytest.mark.parametrize("words", UNREAD, ids=[each["model_type"] for each in UNREAD])
def test_defaults_and_ignored_keys_are_those_of_the_type(words: dict[str, Any]) -> None:
    import torch

    config = hugging.AutoConfig.for_model(**words)
    with torch.device("meta"):
        built = hugging.AutoModelForCausalLM.from_config(config)
    assert _count(words) == sum(parameter.numel() for parameter in built.parameters())
