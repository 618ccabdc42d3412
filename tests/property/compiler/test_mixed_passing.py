"""Activations, weights and gradients in one program: it verifies, runs, and forgets no gradient."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats import dump_schedule, parse_schedule
from pipeloom.ir.formats.program_json import dump_program
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.transfers import holders, owned
from pipeloom.ir.verify.program import verify_program
from pipeloom.ir.verify.schedule import verify_schedule
from tests.support.by_hand import UNIT, by_hand
from tests.support.weight_machine import run_compiled
from tests.support.weight_schedules import mixed_schedules

SEEDS = st.integers(0, 2**32)


def document(program: Program) -> dict[str, Any]:
    return json.loads(json.dumps(dump_program(program)))  # type: ignore[no-any-return]


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


@given(mixed_schedules())
def test_every_compiled_program_is_valid(schedule: Schedule) -> None:
    assert verify_program(document(compile_schedule(schedule))) == []


@given(mixed_schedules(), st.data())
def test_no_instruction_can_be_left_out(schedule: Schedule, data: st.DataObject) -> None:
    program = document(compile_schedule(schedule))
    rows = [row for row in program["instructions"] if row]
    row = data.draw(st.sampled_from(rows))
    del row[data.draw(st.integers(0, len(row) - 1))]
    assert verify_program(program) != []


def test_the_reduce_of_a_replicated_stage_is_asked_for() -> None:
    profile = Profile((UNIT,), 2, shared_by=1)
    plan = by_hand("0F0 0BW0", "0F1 0BW1", profile=profile, passing=Passing.WEIGHTS)
    program = document(compile_schedule(plan))
    assert program["instructions"] == [
        ["0F0", "0BW0", "reduce 0", "step 0"],
        ["0F1", "0BW1", "reduce 0", "step 0"],
    ]
    assert verify_program(program) == []
    program["instructions"] = [
        [line for line in row if line != "reduce 0"] for row in program["instructions"]
    ]
    assert verify_program(program) == [
        "reduce 0 runs 0 times on rank 0, expected once",
        "reduce 0 runs 0 times on rank 1, expected once",
    ]
