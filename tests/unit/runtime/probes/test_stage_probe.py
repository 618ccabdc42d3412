"""What the profiler counts and times on one rank, against bytes added up by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor, nn

from pipeloom.ir import InputError, OpKind
from pipeloom.ir.formats.measured_profile import Figure, fused_time
from pipeloom.runtime import ModelSource, Routes, connect
from pipeloom.runtime.probes.stage_probe import Asked, StageProbe
from pipeloom.runtime.profiling.source_probe import SourceStages

ROWS, NARROW, WIDE = 3, 8, 16


class Stack:
    """Three stages of Linear, two GELUs, Linear; the loss is the mean of squares."""

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [self.stage] * count

    def stage(self) -> nn.Module:
        narrow = nn.Linear(WIDE, NARROW, bias=False)
        return nn.Sequential(nn.Linear(NARROW, WIDE), nn.GELU(), nn.GELU(), narrow)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).pow(2).mean()

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        drawn = torch.ones(2, microbatches, ROWS, NARROW)
        return list(drawn[0]), list(drawn[1])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def probe(
    dtype: torch.dtype | None = None,
    *,
    fused: bool = False,
    recompute: bool = False,
    offload: bool = False,
) -> StageProbe:
    asked = Asked(2, fused=fused, recompute=recompute, offload=offload)
    return alone(Stack(), 3, dtype).probe(asked)


def alone(source: ModelSource, stages: int, dtype: torch.dtype | None = None) -> SourceStages:
    """All stages on one rank."""
    device = torch.device("cpu")
    transport = connect(Routes(), device)
    return SourceStages(source, [0] * stages, transport, dtype=dtype, device=device)


@pytest.mark.parametrize(("dtype", "size"), [(None, 4), (torch.float64, 8), (torch.bfloat16, 2)])
def test_sizes_of_a_middle_stage(dtype: torch.dtype | None, size: int) -> None:
    """::

    numbers a row  x   wide   gelu1   gelu2   dy   dwide
    after F        8 + 16   + 16    + 16                  x: received, read by the first product
    B's beginning  8 + 16   + 16    + 16    + 8           wide, gelu1: saved by the GELUs
    B's end        8                + 16    + 8  + 16     gelu2: read by the second product
    """
    sizes = probe(dtype).sizes(1)
    weights = NARROW * WIDE + WIDE + WIDE * NARROW
    assert sizes.m_b == (8 + 16 + 16 + 16 + 8) * ROWS * size
    assert sizes.m_w == (8 + 16 + 8 + 16) * ROWS * size
    assert sizes.activation == ROWS * NARROW * size
    held = alone(Stack(), 3, dtype).held(1)
    assert held.weight == held.grad == held.optimizer == weights * size


@pytest.mark.parametrize(
    ("fused", "spread", "expected"),
    [(25.0, 0.01, 25.0), (33.0, 0.01, 33.0), (30.1, 0.01, None), (25.0, 0.4, None)],
)
def test_a_fused_time_is_told_where_it_is_no_noise(
    fused: float, spread: float, expected: float | None
) -> None:
    medians = {OpKind.F: 10.0, OpKind.B: 20.0, OpKind.W: 10.0, OpKind.BW: fused}
    times = {kind: Figure(median, spread, 9) for kind, median in medians.items()}
    assert fused_time(times) == expected
    del times[OpKind.BW]
    assert fused_time(times) is None


def test_the_first_stage_receives_no_input_and_the_last_no_gradient() -> None:
    first, middle, last = (probe().sizes(s) for s in range(3))
    # the first stage's batch is kept for W all the same, and without what other microbatches have
    assert (first.m_b, first.m_w) == (middle.m_b, middle.m_w)
    # the last one's dy comes from the loss, which has let go of its own when dy is there
    assert (last.m_b, last.m_w) == (middle.m_b, middle.m_w)
    assert last.activation == middle.activation


def test_a_frozen_parameter_has_no_gradient_and_no_state() -> None:
    class Frozen(Stack):
        def stage(self) -> nn.Module:
            module = super().stage()
            next(module.parameters()).requires_grad_(False)
            return module

    held, sizes = alone(Frozen(), 1).held(0), alone(Frozen(), 1).probe(Asked(1)).sizes(0)
    assert held.weight - held.grad == NARROW * WIDE * 4
    assert held.optimizer == held.grad
    assert sizes.activation is None


def test_what_is_recomputed_holds_its_messages_alone() -> None:
    """x and dy of the middle stage; the first receives no x, the last no dy."""
    found = [probe(recompute=True).sizes(s).m_r for s in range(3)]
    assert found == [(8 * n) * ROWS * 4 for n in (1, 2, 1)]


def test_rounds_that_are_recomputed_time_r_and_leave_nothing() -> None:
    tested = probe(recompute=True)
    before = tested.sizes(1)
    samples = tested.times(3)
    assert {kind for _, kind in samples} == {OpKind.F, OpKind.B, OpKind.W, OpKind.R}
    assert all(len(times) == 2 * 3 and min(times) > 0 for times in samples.values())
    assert tested.sizes(1) == before


def test_what_is_offloaded_leaves_the_messages() -> None:
    """x and dy stay; wide and gelu1, which the GELUs read, and gelu2, which the second product
    does, go."""
    found = [probe(offload=True).sizes(s) for s in range(3)]
    assert [sizes.m_o for sizes in found] == [(8 * n) * ROWS * 4 for n in (1, 2, 1)]
    assert found[1].offload == 3 * 16 * ROWS * 4
    assert probe().sizes(1).m_o is None


def test_pairs_are_timed_and_leave_nothing() -> None:
    tested = probe()
    before = tested.sizes(1)
    samples = tested.pair_times(3)
    # two in flight: in each round the first one's BW goes with the second one's F
    assert {stage: len(times) for stage, times in samples.items()} == {0: 3, 1: 3, 2: 3}
    assert min(min(times) for times in samples.values()) > 0
    assert tested.sizes(1) == before


def test_modules_do_as_stages_and_a_whole_batch_does_not() -> None:
    class Modules(Stack):
        def stages(self, count: int) -> Sequence[nn.Module]:  # type: ignore[override]
            return [self.stage() for _ in range(count)]

    class Whole(Stack):
        def batch(self, step: int, microbatches: int):  # type: ignore[no-untyped-def]
            return torch.ones(2, microbatches * ROWS, NARROW).unbind()

    assert alone(Modules(), 3).probe(Asked(2)).sizes(1) == probe().sizes(1)
    with pytest.raises(InputError, match=r"^Whole.batch\(0, 2\): inputs: expected a list of 2"):
        alone(Whole(), 3).probe(Asked(2))
