"""Runs whose loss becomes NaN: they say so, and their answer is still JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from pipeloom import run
from tests.support.small_gpt import SmallGPT, program_of


@dataclass(frozen=True)
class Diverges(SmallGPT):
    """Its first update takes all weights out of range."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e300)


def test_a_loss_that_is_no_number_is_told() -> None:
    result = run(program_of("1f1b", 2), Diverges(), steps=3)
    assert result is not None
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found["losses"] == [result.losses[0], None, None]
    assert "the loss is nan in step 1" in found["note"].split("; ")
