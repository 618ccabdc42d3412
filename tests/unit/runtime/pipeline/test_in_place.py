"""``Pipeline.profile`` with programs of every kind, with stages in two dtypes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Measurement, OpKind
from pipeloom.runtime import Pipeline
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule

RANKS, MICROBATCHES = 2, 4
Seen = tuple[Measurement, list[int]]


def profiled(
    family: str, options: dict[str, Any], *, relays: bool = False, **settings: Any
) -> Seen:
    """The profile on one rank, and the bytes of its stages' parameters."""
    source = TinyTransformer(torch.float32)
    plan = schedule(family, RANKS, MICROBATCHES)
    ties = [] if family == "pipedream" else [(0, plan.problem.stages - 1)]
    pipeline = Pipeline.from_source(
        compile_schedule(plan, tied=ties, post_validation=relays),
        source,
        transport=own(),
        **({"tied": []} if not ties else {}),
        **options,
    )
    inputs, targets = source.batch(0, MICROBATCHES)
    before = _parameters(pipeline)
    found = pipeline.profile(inputs, target=targets, repeats=2, warmup=1, in_flight=9, **settings)
    assert all(map(torch.equal, before, _parameters(pipeline)))
    assert all(p.grad is None for m in pipeline.modules.values() for p in m.parameters())
    pipeline.step(inputs, target=targets)
    pipeline.close()
    return found, [sum(p.nbytes for p in m.parameters()) for m in pipeline.modules.values()]


def _parameters(pipeline: Pipeline) -> list[torch.Tensor]:
    return [p.detach().clone() for m in pipeline.modules.values() for p in m.parameters()]


@pytest.mark.parametrize(("family", "in_flight"), [("zb-v", 4), ("pipedream", 4), ("chimera", 2)])
def test_all_kinds_of_ops_are_measured_whatever_the_program_has(
    family: str, in_flight: int
) -> None:
    """A rank has at most as many microbatches at once as for a single stage. In chimera each rank
    runs every stage, for half of them."""
    rows = on_threads(partial(profiled, family, {}), RANKS)
    found = rows[0][0]
    assert all(other == found for other, _ in rows.values())
    copies = RANKS if family == "chimera" else 1
    for times in found.times:
        assert set(times) == {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}
        assert {figure.samples for figure in times.values()} == {2 * in_flight * copies}
        assert min(figure.median for figure in times.values()) > 0
    last = found.profile.num_stages - 1
    assert found.profile.tied == (() if family == "pipedream" else ((0, last),))


def test_a_pipeline_that_clips_has_a_barrier_unless_norms_are_relayed() -> None:
    for relays, options, barrier in (
        (False, {}, False),
        (False, {"clip_grad_norm": 1.0}, True),
        (True, {"clip_grad_norm": 1.0}, False),
        (True, {"clip_grad_norm": 1.0, "post_validation": False}, True),
    ):
        rows = on_threads(partial(profiled, "1f1b", options, relays=relays), RANKS)
        assert {found.profile.barrier for found, _ in rows.values()} == {barrier}


def test_in_mixed_precision_masters_and_what_is_computed_with_are_held() -> None:
    plain = on_threads(partial(profiled, "zb-h1", {}), RANKS)
    mixed = on_threads(partial(profiled, "zb-h1", {"param_dtype": torch.bfloat16}), RANKS)
    for rank, (found, sizes) in mixed.items():
        own, other = found.profile.stages[rank], plain[rank][0].profile.stages[rank]
        assert sizes == [other.weight_bytes]
        assert own.weight_bytes == sizes[0] * 3 / 2
        assert own.grad_bytes == own.optimizer_bytes == sizes[0]
        assert own.activation_bytes == (other.activation_bytes or 0) / 2
        assert own.m_b < other.m_b
