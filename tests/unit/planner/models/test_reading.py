"""Models by name, in Hugging Face's and Megatron's words; one line for each fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.inner import PRESETS, read_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_read(name: str) -> None:
    assert read_model(name).layers > 0


@pytest.mark.parametrize("name", ["Llama 2 70B", "llama2-70b", "LLAMA-2-70B"])
def test_case_and_hyphens_of_a_name_do_not_count(name: str) -> None:
    assert read_model(name) == read_model("llama-2-70b")


def test_opt_1_3b_is_not_13b() -> None:
    assert (read_model("opt-1.3b").hidden, read_model("OPT 13B").hidden) == (2048, 5120)


def test_a_file_its_folder_and_its_mapping_are_one_model(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA | {"rope_theta": 5e5, "torch_dtype": "bfloat16"}))
    found = [replace(read_model(each), name="") for each in (file, str(file), tmp_path, LLAMA)]
    assert all(each == found[0] for each in found)


def test_megatrons_words_say_the_same_as_hugging_faces() -> None:
    words = {
        "num-layers": 32,
        "hidden-size": 4096,
        "ffn-hidden-size": 14336,
        "num-attention-heads": 32,
        "group-query-attention": True,
        "num-query-groups": 8,
        "padded_vocab_size": 128256,
        "swiglu": True,
        "normalization": "RMSNorm",
        "untie-embeddings-and-output-weights": True,
        "position-embedding-type": "rope",
        "disable-bias-linear": True,
        "hidden-dropout": 0.0,
        "attention-dropout": 0.0,
        "max_position_embeddings": 2048,
    }
    assert replace(read_model(words), name="llama") == read_model(LLAMA)


def test_megatrons_words_for_latent_attention_and_experts() -> None:
    words = {
        "num_layers": 61,
        "hidden_size": 7168,
        "ffn_hidden_size": 18432,
        "num_attention_heads": 128,
        "vocab_size": 129280,
        "max_position_embeddings": 4096,
        "swiglu": True,
        "normalization": "RMSNorm",
        "untie_embeddings_and_output_weights": True,
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "multi_latent_attention": True,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "num_moe_experts": 256,
        "moe_router_topk": 8,
        "moe_ffn_hidden_size": 2048,
        "moe_shared_expert_intermediate_size": 2048,
        "moe_layer_freq": [0] * 3 + [1] * 58,
        "mtp_num_layers": 1,
    }
    assert replace(read_model(words), name="deepseek-v3") == read_model("deepseek-v3")


def test_words_of_measurements_are_read() -> None:
    """Without a model_type: GPT-3's kind by its feed-forward part, SimuMax's words for Llama."""
    gpt = read_model({"mlp": "gelu-4h", "positions": 1024} | _sizes(2048, 24, 16, 51200))
    assert (gpt.width, gpt.positions, gpt.tied, gpt.gated, gpt.qkv_bias) == (
        8192,
        1024,
        True,
        False,
        True,
    )
    words = {"model_type": "dense", "model_name": "x", "hidden_size": 4096, "head_num": 32}
    words |= {"kv_head_num": 8, "head_size": 128, "intermediate_size": 14336, "layer_num": 32}
    found = read_model(words | {"vocab_size": 128256, "use_swiglu": True})
    expected = read_model(LLAMA | {"max_position_embeddings": None})
    assert replace(found, name="") == replace(expected, name="")


def _sizes(hidden: int, layers: int, heads: int, vocab: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
    }


def test_null_is_not_a_default() -> None:
    """DeepSeek-V2-Lite has no low rank of queries, Mistral v0.3 no window."""
    lite = read_model("deepseek-v2-lite")
    assert lite.latent is not None
    assert lite.latent.query_rank is None
    mistral = PRESETS["mistral-7b"]
    assert read_model(mistral).window == 4096
    assert read_model(mistral | {"sliding_window": None}).window is None
