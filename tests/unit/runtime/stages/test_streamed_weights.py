"""Weights that come and go under a module, and gradients collected on the way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pipeloom.ir import InputError, OpKind, Profile, Schedule, StageProfile, TensorKind, previous
from pipeloom.ir import Tensor as Named
from pipeloom.runtime.stages.flat_parameters import FlatWeights, Layout
from pipeloom.runtime.stages.gradient_accumulator import GradientAccumulator
from pipeloom.runtime.stages.streamed_weights import StreamedStages
from pipeloom.solver import build_family

CPU = torch.device("cpu")


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 5, dtype=torch.float64)


def layout(module: nn.Module) -> Layout:
    return Layout(list(module.parameters()), torch.float64)


def test_what_autograd_saved_reads_what_is_filled_in_later() -> None:
    module, x = layer(), torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    weights = FlatWeights(layout(module), CPU)
    values = weights.flat.clone()
    output = module(x).sum()
    weights.release()
    assert weights.flat.untyped_storage().nbytes() == 0
    weights.fill(2 * values)
    output.backward()
    expected = (2 * layer().weight.detach()).sum(0).expand(2, 3)
    torch.testing.assert_close(x.grad, expected)


def add(module: nn.Linear, factor: float) -> None:
    """Adds ``factor`` to every element of the gradients."""
    (factor * sum(p.sum() for p in module.parameters())).backward()  # type: ignore[union-attr]


def collected(module: nn.Linear, flat: Tensor) -> set[float]:
    return {value for view in layout(module).views(flat) for value in view.flatten().tolist()}


@pytest.mark.parametrize("adds", ["nobody", "another rank", "the owner before", "the owner after"])
def test_what_nobody_added_to_has_no_gradient(adds: str) -> None:
    """A gradient that is 0 is one all the same."""
    module, away = layer(), layer()
    owner, other = (GradientAccumulator(layout(m), CPU, n) for m, n in ((module, 0), (away, 1)))
    other.begin()
    other.ready()
    if adds == "another rank":
        add(away, 0.0)
    owner.begin()
    if adds == "the owner before":
        add(module, 0.0)
    owner.come_home(other.leave(None))
    if adds == "the owner after":
        add(module, 0.0)
    owner.settle()
    assert [p.grad is None for p in module.parameters()] == [adds == "nobody"] * 2


def test_d_comes_home_beside_another_that_is_passing() -> None:
    module = layer()
    collector = GradientAccumulator(layout(module), CPU, departures=1)
    collector.begin()
    passing = torch.full((layout(module).size,), 1.0, dtype=torch.float64)
    collector.arrive(passing)
    collector.come_home(torch.full_like(passing, 5.0))
    add(module, 2.0)
    assert collected(module, collector.leave(passing)) == {3.0}
    assert {
        v for p in module.parameters() if p.grad is not None for v in p.grad.flatten().tolist()
    } == {5.0}


def test_of_two_ds_the_first_collects_until_it_leaves() -> None:
    module = layer()
    collector = GradientAccumulator(layout(module), CPU, departures=3)
    collector.begin()
    first, second = (torch.full((layout(module).size,), v, dtype=torch.float64) for v in (1.0, 2.0))
    collector.arrive(first)
    collector.arrive(second)
    add(module, 10.0)
    assert collected(module, collector.leave(None)) == {0.0}
    assert collected(module, collector.leave(first)) == {11.0}
    collector.ready()
    add(module, 20.0)
    assert collected(module, collector.leave(second)) == {22.0}


def schedule() -> Schedule:
    return build_family("weipipe-interleave", Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2), 2)


def store(*modules: nn.Module, rank: int = 0) -> StreamedStages:
    return StreamedStages(dict(enumerate(modules)), schedule(), rank, CPU)


def test_other_ranks_stages_hold_memory_within_ops_alone() -> None:
    stages = store(layer(), nn.Linear(5, 2, dtype=torch.float64))
    own, other = (next(stages.module(s).parameters()) for s in (0, 1))
    assert own.untyped_storage().nbytes() == 24 * 8
    assert other.untyped_storage().nbytes() == 0
    x = next(
        i
        for i, t in enumerate(schedule().transfers)
        if (t.kind.value, t.stage, t.target) == ("weight", 1, 0)
    )
    tensor = Named(TensorKind.WEIGHT, 1, x)
    spec = stages.spec(TensorKind.WEIGHT, 0)
    buffer = torch.full(spec.shape, 7.0, dtype=spec.dtype)
    received = stages.fitting(tensor, buffer)
    assert (spec.shape, received.shape) == ((24,), (24,))
    stages.giving(tensor, received)()
    with stages.using(1, OpKind.F):
        assert other.detach().unique().tolist() == [7.0]
    assert other.untyped_storage().nbytes() == 0
    onward = previous(schedule().transfers).index(x)
    assert stages.taking(Named(TensorKind.WEIGHT, 1, onward))().data_ptr() == buffer.data_ptr()


def test_frozen_parameters_travel_but_collect_nothing() -> None:
    frozen = layer()
    frozen.weight.requires_grad_(False)
    stages = store(frozen, layer())
    assert stages.spec(TensorKind.WEIGHT, 0).shape == (24,)
    dw = Named(TensorKind.GRADIENT, 0, 0)
    assert stages.fitting(dw, torch.zeros(24)).shape == (8,)


def test_models_that_cannot_travel_are_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"one dtype, got torch.float32, torch.float64"):
        store(layer(), nn.Linear(2, 2))
    shared = layer()
    with pytest.raises(InputError, match="weight of stage 0 and weight of stage 1 are one object"):
        store(shared, shared)


def test_a_d_of_its_own_dtype_is_rounded_once_as_it_leaves() -> None:
    module = layer()
    collector = GradientAccumulator(layout(module), CPU, departures=2, sent_dtype=torch.bfloat16)
    collector.begin()
    collector.ready()
    add(module, 1 / 3)
    first = collector.leave(None)
    assert first.dtype is torch.bfloat16
    assert collected(module, first) == {torch.tensor(1 / 3, dtype=torch.bfloat16).item()}
    received = torch.full((layout(module).size,), 1.0, dtype=torch.bfloat16)
    collector.arrive(received)
    for _ in range(8):  # each too small to change a bfloat16 of 1
        collector.ready()
        add(module, 2.0**-9)
    assert collected(module, collector.leave(received)) == {1.0 + 2.0**-6}


def test_at_home_a_d_of_its_own_dtype_is_added_to_what_is_not_rounded() -> None:
    module = layer()
    collector = GradientAccumulator(layout(module), CPU, departures=0, sent_dtype=torch.bfloat16)
    collector.begin()
    collector.ready()
    add(module, 2.0**-20)
    collector.come_home(torch.full((layout(module).size,), 1.0, dtype=torch.bfloat16))
    assert {
        v for p in module.parameters() if p.grad is not None for v in p.grad.flatten().tolist()
    } == {1.0 + 2.0**-20}
