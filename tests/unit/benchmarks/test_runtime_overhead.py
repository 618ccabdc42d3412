"""The sleeping stage as a graph."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.overhead.sleeping import ROWS, WIDTH
from benchmarks.overhead.traced import TracedStage
from pipeloom.runtime.executor.stage_runner import Cell
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.graphs.graph_runner import GraphRunner, runner_kind
from pipeloom.runtime.measure.activation_ledger import Memory
from pipeloom.runtime.tensors.stage_interface import Spec, StageInterface

SECONDS = 0.02


@pytest.mark.parametrize("first", [True, False])
def test_each_op_of_a_traced_stage_sleeps_and_computes(first: bool) -> None:
    module, memory = TracedStage(SECONDS, first=first), Memory()
    runner = runner_kind("aten")(
        0 if first else 1, module, memory=memory, last=False, loss=None, seed=torch.ones(())
    )
    cell = Cell(WeightQueue(memory), StageInterface.one(Spec((ROWS, WIDTH), torch.float32)))
    x = torch.zeros(ROWS, WIDTH, requires_grad=not first)
    cell.inputs = (x,)
    runner.prepare(cell, cell.inputs)
    assert isinstance(runner, GraphRunner)
    assert runner.refusal is None
    taken = []
    for run in (runner.forward, runner.backward, runner.weight):
        begin = time.perf_counter()
        run(cell)
        taken.append(time.perf_counter() - begin)
        cell.dy = (torch.ones(ROWS, WIDTH),)
    assert min(taken) >= SECONDS
    assert all((p.grad == ROWS).all() for p in module.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in module.parameters())
    assert len(cell.dx) == (0 if first else 1)
