"""Models by name and with Hugging Face's keys; runs; a model's sizes computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pipeloom
from pipeloom.planner import PRESETS, TrainingRun, read_model
from tests.conformance.messages.files import model

WORDS = model()
LLAMA = read_model("llama-2-70b")


def test_names_are_met_as_people_write_them() -> None:
    assert all(read_model(name).layers > 0 for name in PRESETS)
    for name in ("Llama 2 70B", "llama2-70b", "LLAMA-2-70B"):
        assert read_model(name) == LLAMA
    assert (read_model("opt-1.3b").hidden, read_model("OPT 13B").hidden) == (2048, 5120)


def test_a_file_its_folder_and_its_mapping_are_one_model(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(WORDS | {"rope_theta": 5e5, "torch_dtype": "bfloat16"}))
    found = [replace(read_model(each), name="") for each in (file, str(file), tmp_path, WORDS)]
    assert all(each == found[0] for each in found)


def test_words_of_measurements_are_read() -> None:
    """Without a model_type: GPT-3's type from its feed-forward part, and SimuMax's keys for
    Llama."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16}
    gpt = read_model({"mlp": "gelu-4h", "positions": 1024, "vocab_size": 51200} | sizes)
    assert (gpt.width, gpt.positions, gpt.tied) == (8192, 1024, True)
    assert (gpt.gated, gpt.qkv_bias) == (False, True)
    words = {"model_type": "dense", "model_name": "x", "hidden_size": 4096, "head_num": 32}
    words |= {"kv_head_num": 8, "head_size": 128, "intermediate_size": 14336, "layer_num": 32}
    found = read_model(words | {"vocab_size": 128256, "use_swiglu": True})
    expected = read_model(WORDS | {"max_position_embeddings": None})
    assert replace(found, name="") == replace(expected, name="")


def test_null_is_not_a_default() -> None:
    """DeepSeek-V2-Lite has no low rank for queries, and Mistral v0.3 has no window."""
    lite, mistral = read_model("deepseek-v2-lite"), PRESETS["mistral-7b"]
    assert lite.latent is not None
    assert lite.latent.query_rank is None
    windows = (read_model(mistral | more).window for more in ({}, {"sliding_window": None}))
    assert [*windows] == [4096, None]


def test_what_a_run_leaves_open_follows_from_the_rest() -> None:
    run = TrainingRun.of({"gpus": 64, "tp": 4, "pp": 4}, LLAMA)
    assert (run.dp, run.vp, run.cp, run.ep, run.etp) == (4, 1, 1, 1, 4)
    assert (run.seq, run.micro_batch, run.global_batch, run.microbatches) == (4096, 1, 64, 16)
    assert (run.sequence_parallel, run.schedule, run.layers) == (True, "1f1b", 80)
    assert (run.layers_by_stage, run.gradients) == ((20, 20, 20, 20), "fp32")


def test_llama_2_70b_by_layers() -> None:
    """Exact parameters; fewer key and value heads, a gated feed-forward part of 3.5 h, no masks."""
    found = pipeloom.arithmetic("llama-2-70b", micro_batch=8)
    totals, count = found.totals, 68_976_648_192
    assert found.parameters == found.active == count
    assert found.most_stages == 80
    assert (totals["parameters"], totals["optimizer"]) == (2 * count, 12 * count)
    layer = 2 * (4 * 8192 + 8192 + 2 * 1024 + 8192 + 3 * 28672) + 4 * 64
    assert totals["activations"] == 4096 * 8 * (80 * layer + 4 * 8192 + 4 * 32000)
