"""Parameter counts against those of transformers' models, built on meta tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeloom import arithmetic
from pipeloom.planner import PRESETS

hugging = pytest.importorskip("transformers")

LINES = Path(__file__).with_name("parameters.txt").read_text().splitlines()[1:]


@pytest.mark.parametrize("line", LINES)
def test_parameters_are_those_of_the_model_itself(line: str) -> None:
    import torch

    name, _, changed = line.partition(" ")
    kind = name.removeprefix("model_type=")
    words = ({"model_type": kind} if kind != name else PRESETS[name]) | json.loads(changed)
    config = hugging.AutoConfig.for_model(**words)
    with torch.device("meta"):
        built = hugging.AutoModelForCausalLM.from_config(config)
    expected = sum(parameter.numel() for parameter in built.parameters())
    assert arithmetic(words).parameters == expected
    whole = words if kind != name else config.to_dict()  # a file of transformers has all
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
