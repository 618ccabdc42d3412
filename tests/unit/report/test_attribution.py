"""Where the time went that the plan did not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from random import Random

import numpy as np
import pytest

from pipeloom import InputError, Profile, Schedule, StageProfile, build_family, simulate
from pipeloom.report import attribute
from pipeloom.report.attribution import Attribution, Causes
from tests.support.inner import Op, OpKind, Timing

COMM = 0.5
RANKS = 3


def planned(family: str = "zb-h1", microbatches: int = 5) -> Schedule:
    stages = tuple(StageProfile(10.0 + s, 11.0, 8.0 + s, 1.0, 0.4) for s in range(RANKS))
    profile = Profile(stages=stages, ranks=RANKS, t_comm=COMM)
    return build_family(family, profile, microbatches)


def nothing(_: Op) -> float:
    return 0.0


def measured(
    plan: Schedule,
    *,
    longer: Callable[[Op], float] = nothing,
    late: Callable[[Op], float] = nothing,
    pause: Callable[[Op], float] = nothing,
) -> Schedule:
    """``plan`` with times of a run: ops longer, their inputs late, the rank pausing before them."""
    stages = plan.problem.profile.stages
    parts = {OpKind.F: ("t_f",), OpKind.B: ("t_b",), OpKind.W: ("t_w",), OpKind.BW: ("t_b", "t_w")}
    end: dict[Op, float] = {}
    start: list[list[float]] = [[] for _ in range(RANKS)]
    clock = [0.0] * RANKS
    total = sum(len(plan.ops(rank)) for rank in range(RANKS))
    while sum(map(len, start)) < total:
        for rank in range(RANKS):
            for op in plan.ops(rank)[len(start[rank]) :]:
                inputs = makers(op)
                if not all(maker in end for maker in inputs):
                    break
                came = max(
                    (end[i] + (COMM + late(op) if i.stage != op.stage else 0.0) for i in inputs),
                    default=0.0,
                )
                start[rank].append(max(clock[rank] + pause(op), came))
                took = sum(getattr(stages[op.stage], part) for part in parts[op.kind]) + longer(op)
                clock[rank] = end[op] = start[rank][-1] + took
                if op.kind is OpKind.BW:
                    end[Op(OpKind.B, op.stage, op.microbatch)] = end[op]
    timing = Timing(
        tuple(np.array(row) for row in start),
        tuple(np.array([end[op] for op in plan.ops(rank)]) for rank in range(RANKS)),
        (7.0,) * RANKS,
        np.empty((0, 2)),
    )
    return replace(plan, timing=timing)


def makers(op: Op) -> list[Op]:
    if op.kind is OpKind.F:
        return [Op(OpKind.F, op.stage - 1, op.microbatch)] if op.stage else []
    if op.kind is OpKind.W:
        return [Op(OpKind.B, op.stage, op.microbatch)]
    above = [Op(OpKind.B, op.stage + 1, op.microbatch)] if op.stage < RANKS - 1 else []
    return [Op(OpKind.F, op.stage, op.microbatch), *above]


def adds_up(found: Attribution) -> bool:
    beyond = found.measured - found.planned
    return found.causes.total - found.slack == pytest.approx(beyond, abs=1e-9)


def test_a_run_as_planned_lost_nothing() -> None:
    plan = planned()
    found = attribute(plan, measured(plan))
    assert found.measured == pytest.approx(found.planned)
    assert astuple(found.causes) == pytest.approx(astuple(Causes()), abs=1e-9)
    assert found.slack == pytest.approx(0.0, abs=1e-9)


def test_each_cause_is_told_from_the_others() -> None:
    plan = planned(microbatches=6)
    last = plan.ops(RANKS - 1)[-1]
    slow = attribute(plan, measured(plan, longer=lambda op: 2.0 * (op.kind is OpKind.B)))
    assert slow.causes.total >= 2.0
    assert astuple(slow.causes) == pytest.approx(
        astuple(Causes(slower=slow.causes.total)), abs=1e-9
    )
    assert all(loss.causes.slower == 2.0 * (loss.op.kind is OpKind.B) for loss in slow.chain)
    one = attribute(plan, measured(plan, longer=lambda op: 9.0 * (op == last)))
    assert astuple(one.causes) == pytest.approx(astuple(Causes(uneven=9.0)), abs=1e-9)
    late = attribute(plan, measured(plan, late=lambda op: 1.5))
    assert late.causes.total >= 1.5
    assert astuple(late.causes) == pytest.approx(
        astuple(Causes(receive=late.causes.total)), abs=1e-9
    )
    pause = attribute(plan, measured(plan, pause=lambda op: 0.25))
    assert pause.causes.host >= 0.25
    assert [pause.causes.receive, pause.causes.slower] == pytest.approx([0, 0], abs=1e-9)
    assert all(adds_up(found) for found in (slow, one, late, pause))


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "gpipe"])
@pytest.mark.parametrize("seed", range(5))
def test_the_causes_and_each_ranks_parts_add_up(family: str, seed: int) -> None:
    plan, random = planned(family), Random(seed)
    ran = measured(
        plan,
        longer=lambda op: random.uniform(-1.0, 5.0),
        late=lambda op: random.uniform(0.0, 4.0),
        pause=lambda op: random.uniform(0.0, 1.0),
    )
    found = attribute(plan, ran)
    assert adds_up(found)
    assert found.slack > -1e-9
    for row in found.ranks:
        parts = row.compute + row.waiting + row.receive + row.host
        assert parts == pytest.approx(found.measured)
        assert row.peak == 7.0


def test_travelling_weights_count_with_their_planned_times() -> None:
    stage = StageProfile(10.0, 10.0, 8.0, 1.0, 0.4, weight_bytes=1.0, grad_bytes=1.0)
    profile = Profile(stages=(stage,) * RANKS, ranks=RANKS, t_comm=COMM)
    plan = build_family("weipipe-interleave", profile, 7)
    timing = simulate(plan)
    found = attribute(plan, replace(plan, timing=replace(timing, transfers=np.empty((0, 2)))))
    assert found.measured == pytest.approx(found.planned)
    assert found.causes.total == pytest.approx(0.0, abs=1e-9)


def test_other_ops_are_refused() -> None:
    plan = planned()
    with pytest.raises(InputError, match=r"rank 0, op 3: expected .* as planned, got"):
        attribute(plan, measured(planned("1f1b")))
    with pytest.raises(InputError, match="expected times, got none"):
        attribute(plan, replace(plan, timing=None))
