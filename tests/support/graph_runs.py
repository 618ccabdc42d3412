"""A stage run by autograd and as graphs, with the same weights, inputs and random numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom.ir import OpKind
from pipeloom.runtime import Cell, Ledger, StageRunner, StagesAs
from pipeloom.runtime.executor.remat_ops import calls
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.graphs.graph_runner import GraphRunner, runner_kind

MICROBATCHES = 2


@dataclass(frozen=True)
class Ran:
    """What the microbatches of a last stage left: ``values`` are losses, gradients of inputs,
    gradients of parameters and buffers, by name; ``in_b``: the share of trained elements whose
    gradient comes with B; ``held``: bytes between the last F and what comes after it."""

    values: dict[str, Tensor]
    peak: int
    live: int
    refusal: str | None
    in_b: float
    held: int = 0


def square(output: Any, _: Any) -> Tensor:
    return output.square().mean()  # type: ignore[no-any-return]


def run(
    module: nn.Module,
    given: Tensor,
    *,
    stages_as: StagesAs = "eager",
    split: bool = False,
    options: Mapping[str, Any] | None = None,
    loss: Callable[[Any, Any], Any] = square,
    again: bool = False,
) -> Ran:
    """The module as a last stage; its input needs a gradient where it is floating. ``again``:
    its forwards are recomputed."""
    module, memory = copy.deepcopy(module), Ledger()
    memory.start([module])
    runner: StageRunner = runner_kind(stages_as)(
        1, module, memory=memory, last=True, loss=loss, seed=torch.tensor(0.5)
    )
    values: dict[str, Tensor] = {}
    torch.manual_seed(3)
    for j in range(MICROBATCHES):
        cell = Cell(WeightQueue(memory) if split else None, recomputed=again)
        cell.inputs, cell.options = (_leaf(given),), options or {}
        calls(runner, OpKind.F, cell)(cell)
        held = memory.live
        if again:
            calls(runner, OpKind.R, cell)(cell)
        assert cell.loss is not None
        values[f"loss {j}"] = cell.loss
        runner.backward(cell)
        values |= {f"dx {j}": dx for dx in cell.dx}
        if split:
            runner.weight(cell)
    values |= {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    values |= {f"buffer {n}": b for n, b in module.named_buffers()}
    refusal = runner.refusal if isinstance(runner, GraphRunner) else None
    return Ran(values, memory.peak, memory.live, refusal, _in_b(runner), held)


def _leaf(given: Tensor) -> Tensor:
    return given.clone().requires_grad_(given.is_floating_point())


def _in_b(runner: StageRunner) -> float:
    if not isinstance(runner, GraphRunner) or runner.refusal is not None:
        return 1.0
    trained = {n: p.numel() for n, p in runner.module.named_parameters() if p.requires_grad}
    return sum(trained[name] for name in runner.in_b) / sum(trained.values())


def same(found: Ran, wanted: Ran) -> list[str]:
    """The names of values that differ in any bit."""
    assert found.values.keys() == wanted.values.keys()
    return [n for n, x in wanted.values.items() if not torch.equal(x, found.values[n])]


def furthest(found: Ran, wanted: Ran) -> float:
    """The largest difference of any value, relative to its largest element."""
    assert found.values.keys() == wanted.values.keys()
    pairs = [(found.values[n].double(), x.double()) for n, x in wanted.values.items()]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)
