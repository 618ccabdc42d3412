"""At limits that no schedule keeps without recomputation or offload: gradients are one process's,
memory is within them."""

from __future__ import annotations

from functools import cache

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.solver.families import build_family
from tests.distributed.cases.remat import Case, Outcome, cases, planned, run_cases
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import BOUNDS

RANKS, COUNTS = 2, (2, 4, 7)


@cache
def outcomes() -> dict[Case, list[Outcome]]:
    """All cases in one launch, planned here."""
    chosen = [(case, planned(case.lever, RANKS, case.dtype)) for case in cases(RANKS)]
    found = launch(run_cases, RANKS, (chosen,), timeout=240, message_timeout=60)
    return {case: [found[rank][i] for rank in range(RANKS)] for i, (case, _) in enumerate(chosen)}


@pytest.mark.parametrize("case", cases(RANKS), ids=str)
def test_what_is_recomputed_or_offloaded_trains_alike_within_its_limit(case: Case) -> None:
    rows = outcomes()[case]
    assert all(row.violations == () for row in rows)
    assert all(row.limit < row.infeasible_without for row in rows)
    assert all(row.pulled > 0 for row in rows)
    assert max(row.difference for row in rows) <= BOUNDS[case.dtype]
    assert all(0 < row.peak <= row.limit for row in rows), [(row.peak, row.limit) for row in rows]
    last = next(row for row in rows if row.losses)
    assert last.losses == pytest.approx(last.expected_losses, rel=BOUNDS[case.dtype])


def test_weights_that_go_round_leave_activations_of_one_microbatch_at_a_time() -> None:
    """The first BW of a microbatch comes before the first F of the next one but one."""
    stage = StageProfile(2.0, 2.0, 1.5, activation_bytes=1e3, weight_bytes=1e6)
    profile = Profile((stage,) * RANKS, RANKS, t_comm=0.1)
    plans = [build_family("weipipe-interleave", profile, count) for count in COUNTS]
    programs = [compile_schedule(plan, tied=[(0, RANKS - 1)]) for plan in plans]
    rows = on_threads(_peaks, RANKS, (programs,), timeout=120).values()
    first, *others = (max(each) for each in zip(*rows, strict=True))
    assert max(others) < 1.05 * first


def _peaks(programs: list[Program]) -> list[int]:
    source, found = TinyTransformer(), []
    for program in programs:
        pipeline = Pipeline.from_source(program, source, transport=own())
        inputs, targets = source.batch(0, program.schedule.problem.microbatches)
        pipeline.step(inputs, target=targets)
        pipeline.close()
        found.append(pipeline.peak_memory)
    return found
