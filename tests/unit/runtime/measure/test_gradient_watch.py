"""Which gradients come in B and which in W, as it happens."""

import torch
from torch import Tensor, nn

from pipeloom.ir.model.weight_coverage import WeightCoverage
from pipeloom.runtime import Cell, Memory, Spec, StageInterface, StageRunner
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.graphs.graph_runner import GraphRunner
from pipeloom.runtime.measure.gradient_watch import GradientWatch
from pipeloom.runtime.rank.model_names import model_name


class Mixed(nn.Module):
    """One parameter that a product and arithmetic share, one frozen, one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.both = nn.Parameter(torch.randn(4, 4))
        self.unused, self.frozen = nn.Parameter(torch.ones(9)), nn.Parameter(torch.ones(4))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(x * self.frozen)) @ self.both
        return out + self.both


def watched(
    module: nn.Module, microbatches: int = 2, kind: type[StageRunner] = StageRunner
) -> WeightCoverage | None:
    memory, x = Memory(), torch.randn(4, 4)
    runner = kind(1, module, memory=memory, last=False, loss=None, seed=torch.ones(()))
    runner.watched = GradientWatch()
    for _ in range(microbatches):
        cell = Cell(WeightQueue(memory), StageInterface.one(Spec.of(x)))
        cell.inputs, cell.dy = (x.clone().requires_grad_(),), (torch.ones_like(x),)
        for run in (runner.forward, runner.backward, runner.weight):
            run(cell)
    found = runner.covered(lambda stage, name: model_name(None, stage, name))
    assert runner.covered(lambda stage, name: name) is None
    return found


def test_a_parameter_whose_gradient_comes_in_both_is_in_b() -> None:
    assert watched(Mixed()) == WeightCoverage(
        1, {"linear.weight": 16, "linear.bias": 4}, {"norm.weight": 4, "norm.bias": 4, "both": 16}
    )


def test_of_a_graph_its_cut_tells() -> None:
    """Of the norm's gradients one kernel computes all three: the input's is B's."""
    found = watched(Mixed(), kind=GraphRunner)
    in_b = {"norm.weight": 4, "norm.bias": 4}
    assert found == WeightCoverage(1, {"linear.weight": 16, "linear.bias": 4, "both": 16}, in_b)


def test_hooks_are_gone_afterwards() -> None:
    """One that stayed would leave the product to autograd."""
    module = Mixed()
    assert watched(module) == watched(module)


def test_names_are_the_models_and_without_wrappers() -> None:
    assert model_name(lambda stage, name: f"model.{stage}.{name}", 2, "_orig_mod.a") == "model.2.a"
    assert model_name({}.__getitem__, 2, "a") == "a"  # type: ignore[arg-type]
