"""Profiles measured in one process: bytes equal those computed by hand and those calculated without
running, and times become links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from pipeloom.ir import Link, Measurement, OpKind
from pipeloom.runtime import ModelSource, measure_profile
from tests.support.inside import LinkSamples, links_of, probe_host
from tests.support.models import Squares
from tests.support.one_rank import Of

pytestmark = pytest.mark.usefixtures("here")
ROWS, NARROW, WIDE, MEGABYTE = 3, 8, 16, 1_000_000
WEIGHTS = NARROW * WIDE + WIDE + WIDE * NARROW


@dataclass(frozen=True)
class Stack(Squares):
    """Stages of Linear, two GELUs, Linear."""

    frozen: bool = False
    shape: ClassVar[tuple[int, ...]] = (ROWS, NARROW)

    def stage(self, number: int) -> nn.Module:
        first, narrow = nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW, bias=False)
        first.weight.requires_grad_(not self.frozen)
        return nn.Sequential(first, nn.GELU(), nn.GELU(), narrow)


class Whole(Stack):
    """Its batch cannot be cut."""

    def batch(self, step: int, microbatches: int) -> Any:
        return torch.ones(2, microbatches * ROWS, NARROW).unbind()


class Choosing(Stack):
    """It depends on values."""

    def stage(self, number: int) -> nn.Module:
        return nn.Sequential(super().stage(number), Of(lambda _, x: x if x.sum() > 0 else -x))


def measured(source: ModelSource, stages: int = 3, **options: Any) -> Measurement:
    """All stages, measured in one process."""
    options = {"recompute": True, "offload": True, "repeats": 1, "warmup": 0} | options
    return measure_profile(source, stages=stages, ranks=stages, together=False, **options)


@pytest.mark.parametrize(("dtype", "size"), [(None, 4), (torch.float64, 8), (torch.bfloat16, 2)])
def test_sizes_are_those_by_hand(dtype: torch.dtype | None, size: int) -> None:
    """::

    numbers a row  x   wide   gelu1   gelu2   dy   dwide
    after F        8 + 16   + 16    + 16                  x: received, read by the first product
    B's beginning  8 + 16   + 16    + 16    + 8           wide, gelu1: saved by the GELUs
    B's end        8                + 16    + 8  + 16     gelu2: read by the second product

    The first stage's batch is kept for W all the same; the last one's dy comes from the loss, which
    has let go of its own when dy is there. What is recomputed holds x and dy until then, and so
    does what is offloaded; the first stage receives no x, the last no dy.
    """
    stages = measured(Stack(), dtype=dtype).profile.stages
    row = ROWS * size
    for stage in stages:
        assert stage.m_b == (8 + 16 + 16 + 16 + 8) * row
        assert stage.m_w == (8 + 16 + 8 + 16) * row
        assert stage.activation_bytes == ROWS * NARROW * size
        assert stage.weight_bytes == stage.grad_bytes == stage.optimizer_bytes == WEIGHTS * size
    # the loss saves the last stage's output, too
    assert [stage.offload_bytes for stage in stages] == [n * row for n in (48, 48, 48 + 8)]
    assert [stage.m_r for stage in stages] == [8 * n * row for n in (1, 2, 1)]
    assert [stage.m_o for stage in stages] == [stage.m_r for stage in stages]


def test_a_frozen_parameter_has_no_gradient_and_no_state() -> None:
    (stage,) = measured(Stack(frozen=True), 1).profile.stages
    assert stage.weight_bytes is not None
    assert stage.grad_bytes == stage.optimizer_bytes == stage.weight_bytes - NARROW * WIDE * 4
    assert stage.activation_bytes is None


def test_rounds_of_all_kinds_are_timed() -> None:
    found = measured(Stack(), repeats=3, in_flight=2)
    for times in found.times:
        assert {*times} == {OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R}
        assert {figure.samples for figure in times.values()} == {2 * 3}
        assert min(figure.median for figure in times.values()) > 0


def test_a_model_that_is_there_is_left_as_it_is() -> None:
    source = Stack()
    modules = [source.stage(s) for s in range(2)]
    object.__setattr__(source, "stages", lambda count: modules)
    before = [p for module in modules for p in module.parameters()]
    found = measured(source, 2)
    assert [p for module in modules for p in module.parameters()] == before
    assert all(type(p) is nn.Parameter and p.grad is None for p in before)
    assert found.profile.stages[0].weight_bytes == sum(p.nbytes for p in before) / 2


def samples(ranks: tuple[int, int], small: float, large: float) -> LinkSamples:
    times = {8: [small] * 5, MEGABYTE: [large / 2, large, large, large, large * 9]}
    return LinkSamples(ranks, times)


def test_times_of_messages_are_links() -> None:
    """Latency from small messages, bandwidth from the additional time of large ones; a much slower
    pair is reported."""
    alike = [samples(pair, 0.1, 1.1) for pair in ((0, 1), (2, 3), (0, 3))]
    links = links_of([samples(pair, 0.5, 1.5) for pair in ((0, 1), (1, 2))])
    assert (links.default, links.pairs) == (Link(0.5, pytest.approx(1.0)), ())
    assert links.default.delay(MEGABYTE) == pytest.approx(1.5)
    ((a, b, slow),) = links_of([*alike, samples((1, 2), 2.0, 4.0)]).pairs
    assert (a, b, slow) == (1, 2, Link(2.0, pytest.approx(0.5)))
    faster = links_of([samples((0, 1), 2.0, 1.0)]).default  # than a small one
    assert faster.delay(MEGABYTE) == pytest.approx(1.0)
    assert 0.99 < faster.latency < 1.0
    bounded = links_of([samples((0, 1), 1.0, 2.0)], most=0.25).default  # by an activation
    assert (bounded.latency, bounded.delay(MEGABYTE)) == (0.25, pytest.approx(2.0))
    copies = probe_host(torch.device("cpu"), 1)
    assert (copies.ranks, [*copies.times]) == ((1, 1), [8, 1 << 23])
    assert {len(times) for times in copies.times.values()} == {20}
