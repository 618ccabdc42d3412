"""Activations, weights and gradients in one program: it verifies, runs, and forgets no gradient."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats import dump_schedule, parse_schedule
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.transfers import holders, owned
from pipeloom.ir.verify.schedule import verify_schedule
from tests.support.weight_machine import run_compiled
from tests.support.weight_schedules import mixed_schedules

SEEDS = st.integers(0, 2**32)


@given(mixed_schedules())
def test_a_schedule_and_its_file_are_valid(schedule: Schedule) -> None:
    written = dump_schedule(schedule)
    assert verify_schedule(written) == []
    assert dump_schedule(timed(parse_schedule(written, "file"))) == written


@given(mixed_schedules(), SEEDS, st.booleans())
def test_its_program_runs_and_collects_every_gradient_once(
    schedule: Schedule, seed: int, tie: bool
) -> None:
    last = schedule.problem.stages - 1
    tied = [(0, last)] if tie and last else []
    machine = run_compiled(schedule, seed, tied)
    replicated = {(s,) for s, ranks in enumerate(holders(schedule)) if len(ranks) > 1}
    for rank, mine in enumerate(owned(schedule)):
        expected = [group for group in sorted({*replicated, *tied}) if set(group) & set(mine)]
        assert [item.stages for item in machine.reduced[rank]] == expected
