"""Whatever the family, what the compiler makes of it verifies; and no line of it can be spared."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.program_json import dump_program
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.program import verify_program
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES, build_family
from tests.support.families import fits

TIMES = st.one_of(st.just(0.0), st.floats(0.01, 5.0))
NAMES = st.sampled_from([*FAMILIES, "interleaved-1f1b:3"])


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    ranks = draw(st.integers(1, 4))
    stages = tuple(StageProfile(*(draw(TIMES) for _ in range(3))) for _ in range(ranks))
    profile = Profile(stages, ranks, draw(TIMES))
    name = draw(NAMES)
    assume(fits(name, ranks))
    schedule = build_family(name, profile, draw(st.integers(1, 7)))
    together = name not in ASYNCHRONOUS  # all gradients of an iteration are there at one time
    tied = (
        [[0, schedule.problem.stages - 1]] if together and ranks > 1 and draw(st.booleans()) else []
    )
    relayed = together and draw(st.booleans()) and not schedule.transfers
    program = compile_schedule(schedule, tied=tied, post_validation=relayed)
    return json.loads(json.dumps(dump_program(program)))  # type: ignore[no-any-return]


@given(programs())
def test_every_compiled_program_is_valid(program: dict[str, Any]) -> None:
    assert verify_program(program) == []


@given(programs(), st.booleans(), st.data())
def test_no_instruction_can_be_left_out_or_doubled(
    program: dict[str, Any], twice: bool, data: st.DataObject
) -> None:
    busy = [row for row in program["instructions"] if row]
    lines = data.draw(st.sampled_from(busy))
    at = data.draw(st.sampled_from(range(len(lines))))
    lines[at : at + 1] = [lines[at]] * 2 if twice else []
    assert verify_program(program) != []


JSON = (
    st.none() | st.integers(-2, 9) | st.sampled_from(["", "x1", "step 9", "0F0", [], {}, 10**400])
)


@given(programs(), st.data())
def test_no_document_makes_the_verifier_fall_over(
    program: dict[str, Any], data: st.DataObject
) -> None:
    inner: Any = program
    while True:
        key = data.draw(
            st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner)))
        )
        if not (isinstance(inner[key], dict | list) and inner[key]) or data.draw(st.booleans()):
            break
        inner = inner[key]
    inner[key] = data.draw(JSON)
    try:
        violations = verify_program(program)
    except InputError as error:
        violations = list(error.errors)
    assert all(isinstance(line, str) and "\n" not in line for line in violations)
