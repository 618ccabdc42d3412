"""The demo's model: the same however it is cut."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from examples.gpt import GPT, small


def build(model: GPT, count: int) -> nn.Sequential:
    return nn.Sequential(*(stage() for stage in model.stages(count)))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_tied_names_the_embedding_and_the_head(count):
    model = replace(small(), tie_weights=True)
    ((first, last),) = model.tied(count)
    stages = [stage() for stage in model.stages(count)]
    embedding, head = (stages[s].get_parameter(name) for s, name in (first, last))
    assert torch.equal(embedding, head)
    assert embedding is not head
    assert small().tied(count) == ()


def test_attention_is_causal():
    model = build(replace(small(), dtype=torch.float64), 1)
    symbols = small().batch(0, 1)[0][0]
    changed = symbols.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    same = (model(symbols) == model(changed)).all(dim=-1).all(dim=0)
    assert same.tolist() == [True] * 9 + [False] * 7
