"""Forwards of graphs that are recomputed: gradients, buffers and random numbers are those of one
that keeps all, bit by bit; until R only the input and changed buffers are held."""

from __future__ import annotations

import pytest
import torch

from tests.support.graph_runs import furthest, run, same
from tests.unit.runtime.graphs.test_graph_runner import MODELS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["block", "batch norm", "odd", "low rank"])
def test_what_is_recomputed_trains_bit_by_bit_alike(name: str) -> None:
    make, given = MODELS[name]
    torch.manual_seed(0)
    module, split = make(), name != "block"
    plain = run(module, given, stages_as="aten", split=split)
    found = run(module, given, stages_as="aten", split=split, again=True)
    received = given.nbytes + sum(buffer.nbytes for buffer in module.buffers())
    assert same(found, plain) == []
    assert found.live == 0
    assert found.peak <= plain.peak + received
    assert found.held <= received


@pytest.mark.slow
@pytest.mark.parametrize("name", ["block", "batch norm"])
def test_compiled_recomputations_differ_by_rounding(name: str) -> None:
    make, given = MODELS[name]
    torch.manual_seed(0)
    module = make()
    found = run(module, given, stages_as="inductor", split=True, again=True)
    assert furthest(found, run(module, given, split=True)) <= 1e-5
