"""Parameter counts compared with transformers' models on meta tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeloom import arithmetic
from pipeloom.planner import PRESETS

hugging = pytest.importorskip("transformers")

TEXT = Path(__file__).with_name("parameters.txt").read_text()
LINES, COUNTS = (block.splitlines()[1:] for block in TEXT.split("\n\n"))
PUBLISHED = [line.split() for line in COUNTS]


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
    whole = words if kind != name else config.to_dict()  # transformers writes all keys
    assert arithmetic(whole).parameters == expected


@pytest.mark.parametrize(("preset", "count"), PUBLISHED)
def test_whole_presets_have_the_published_counts(preset: str, count: str) -> None:
    assert arithmetic(preset).parameters == int(count)
