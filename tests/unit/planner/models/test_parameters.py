"""Parameter counts against those of transformers' models, built on meta tensors."""

from __future__ import annotations

from typing import Any

import pytest

from pipeloom.planner.models.layers import work_of
from pipeloom.planner.models.reading import read_model
from pipeloom.planner.models.reading.presets import PRESETS
from pipeloom.planner.models.run import TrainingRun
from pipeloom.planner.models.work import WorkKind

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
