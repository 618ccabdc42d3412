"""Forwards of which a part is recomputed: gradients, buffers and random numbers are those of one
that keeps all, bit by bit; memory is what the level says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.profile import WHOLE
from pipeloom.runtime.executor.remat_ops import calls
from pipeloom.runtime.executor.stage_runner import Cell
from pipeloom.runtime.graphs.graph_runner import runner_kind
from pipeloom.runtime.graphs.levels.part import StageLevels
from pipeloom.runtime.measure.activation_ledger import Memory
from pipeloom.runtime.rank.options import StagesAs
from tests.support.graph_runs import furthest, run, same, square
from tests.unit.runtime.graphs.levels.test_front import Counting
from tests.unit.runtime.graphs.test_graph_runner import MODELS, X


def levels(module: nn.Module, given: torch.Tensor) -> StageLevels:
    """Those of a module as a last stage."""
    runner = runner_kind("aten")(
        1, copy.deepcopy(module), memory=Memory(), last=True, loss=square, seed=torch.tensor(0.5)
    )
    cell = Cell(None)
    inputs = (given.clone().requires_grad_(given.is_floating_point()),)
    runner.prepare(cell, inputs)
    found: StageLevels = cell.graphs.levels
    return found


LONG = ("first", "last", "attention", "autocast", "checkpointed, reentrant")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *(name for name in (*MODELS, "counting") if name not in LONG),
        *(pytest.param(name, marks=pytest.mark.slow) for name in LONG),
    ],
)
def test_what_is_recomputed_in_part_trains_bit_by_bit_alike(name: str) -> None:
    make, given = (MODELS | {"counting": (Counting, X)})[name]
    torch.manual_seed(0)
    module = make()
    parts, split = levels(module, given), name != "block"
    plain = run(module, given, stages_as="aten", split=split)
    names = [*parts.names(2), "1%", WHOLE]
    received = given.nbytes + sum(buffer.nbytes for buffer in module.buffers())
    held = []
    for level in names:
        found = run(module, given, stages_as="aten", split=split, level=level)
        assert same(found, plain) == []
        assert found.live == 0
        assert found.peak <= plain.peak + received
        held.append(found.held - given.nbytes)
        if level != WHOLE:
            assert held[-1] == parts[level].held
    assert held[:-2] == sorted(held[:-2], reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["block", "dropout", "batch norm"])
def test_compiled_parts_differ_by_rounding(name: str) -> None:
    make, given = MODELS[name]
    torch.manual_seed(0)
    module = make()
    level = levels(module, given).names(1)[0]
    found = run(module, given, stages_as="inductor", split=True, level=level)
    assert furthest(found, run(module, given, split=True)) <= 1e-5


@pytest.mark.parametrize("stages_as", ["eager", "aten"])
def test_a_stage_that_is_no_graph_has_no_levels(stages_as: StagesAs) -> None:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda _, __, y: y * torch.rand(()).item())
    runner = runner_kind(stages_as)(
        1, module, memory=Memory(), last=True, loss=square, seed=torch.tensor(0.5)
    )
    cell = Cell(None, recomputed=True, level="40%")
    cell.inputs = (torch.zeros(2, 4),)
    with pytest.raises(InputError, match=r"stage 1: expected it as a graph .* \(level 40%\): "):
        calls(runner, OpKind.F, cell)(cell)
