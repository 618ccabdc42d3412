"""No mutant of a sound program is accepted, and each breach is named.

``programs.txt`` has the programs, ``program_mutants.txt`` the mutants with what is said of them.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom import (
    Profile,
    Schedule,
    StageProfile,
    build_family,
    compile_schedule,
    dump_program,
    dump_schedule,
    verify_program,
)
from pipeloom.ir import Passing, Transfer, TransferKind
from pipeloom.solver import ASYNCHRONOUS, FAMILIES
from tests.support.by_hand import UNIT, by_hand
from tests.support.families import fits
from tests.support.mutants import Document, Mutant, edited_program, mutants
from tests.support.random_schedules import profiles, travelling

HERE = Path(__file__).parent
WEIGHT, GRADIENT = TransferKind.WEIGHT, TransferKind.GRADIENT
TWO_STAGES = ("0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1")


def one_stage(ranks: int, *transfers: Transfer) -> Schedule:
    """Its weights are rank 0's; a microbatch on each rank."""
    profile = Profile((UNIT,), ranks, t_comm=0.5, shared_by=1)
    rows = [f"0F{j} 0BW{j}" for j in range(ranks)]
    plan = by_hand(*rows, profile=profile, passing=Passing.WEIGHTS)
    return replace(plan, transfers=transfers, report=None)


SCHEDULES = {
    "two stages": by_hand(*TWO_STAGES, profile=Profile((UNIT,) * 2, 2, t_comm=0.5)),
    "weights": one_stage(
        2, Transfer(WEIGHT, 0, 0, 0, 1, 0, 0), Transfer(GRADIENT, 0, 0, 1, 0, 2, 2)
    ),
    "ring": one_stage(
        3,
        Transfer(WEIGHT, 0, 0, 0, 1, 0, 0),
        Transfer(WEIGHT, 0, 0, 1, 2, 2, 0),
        Transfer(GRADIENT, 0, 0, 1, 2, 2, 2),
        Transfer(GRADIENT, 0, 0, 2, 0, 2, 2),
    ),
    "one rank": by_hand("0F0 1F0 1BW0 0BW0"),
}


def compiled(schedule: Schedule, **options: Any) -> Document:
    return json.loads(json.dumps(dump_program(compile_schedule(schedule, **options))))  # type: ignore[no-any-return]


def written(name: str) -> Document:
    """The program of ``programs.txt``, or one that is compiled."""
    if name == "steps ahead":
        profile = Profile((StageProfile(2.0, 2.0, 1.5),) * 3, 3, t_comm=0.1)
        return compiled(build_family("zb-h1", profile, 3), post_validation=True)
    if name == "sizes":
        sizes = replace(UNIT, weight_bytes=2.0), replace(UNIT, weight_bytes=3.0)
        return compiled(build_family("weipipe-interleave", Profile(sizes, 2), 2))
    if name == "each microbatch":
        return compiled(build_family("pipedream", Profile((UNIT,) * 2, 2), 3))
    if name == "tied":
        tied = Profile((UNIT,) * 4, 4, t_comm=0.1, tied=((0, 3), (1, 2)))
        return compiled(build_family("1f1b", tied, 4))
    if name == "replicated":
        return compiled(one_stage(2))
    blocks = (HERE / "programs.txt").read_text(encoding="utf-8").strip().split("\n\n")
    own = [block.splitlines() for block in blocks if block.startswith(f"{name}, ")]
    return {
        "format": "pipeloom.program",
        "version": 1,
        "schedule": dump_schedule(SCHEDULES[name]),
        "instructions": [rows for _, *rows in own],
        "buffers": [head.split(": ")[1].removesuffix("none").split() for head, *_ in own],
    }


NAMES = [*SCHEDULES, "steps ahead", "sizes", "each microbatch", "tied", "replicated"]


@pytest.mark.parametrize("name", NAMES)
def test_sound_programs_are_accepted(name: str) -> None:
    assert verify_program(written(name)) == []


@pytest.mark.parametrize("mutant", mutants(HERE / "program_mutants.txt"), ids=str)
def test_each_breach_is_named(mutant: Mutant) -> None:
    found = verify_program(edited_program(written(mutant.base), mutant.edits))
    if mutant.expected == ("valid",):
        assert found == []
    else:
        for expected in mutant.expected:
            assert any(expected in line for line in found), found


@st.composite
def family_programs(draw: st.DrawFn) -> Document:
    ranks = draw(st.integers(1, 4))
    name = draw(st.sampled_from([*FAMILIES, "interleaved-1f1b:3"]))
    assume(fits(name, ranks))
    profile, count = draw(profiles(ranks, ranks)), draw(st.integers(1, 7))
    schedule = build_family(name, profile, count, memory_limit=math.inf)
    together = name not in ASYNCHRONOUS  # all gradients of an iteration are there at one time
    tie = together and ranks > 1 and draw(st.booleans())
    tied = [[0, schedule.problem.stages - 1]] if tie else []
    relayed = together and draw(st.booleans()) and not schedule.transfers
    return compiled(schedule, tied=tied, post_validation=relayed)


@given(family_programs() | travelling().map(compiled), st.booleans(), st.data())
def test_no_instruction_can_be_left_out_or_doubled(
    program: Document, twice: bool, data: st.DataObject
) -> None:
    assert verify_program(program) == []
    lines = data.draw(st.sampled_from([row for row in program["instructions"] if row]))
    at = data.draw(st.sampled_from(range(len(lines))))
    lines[at : at + 1] = [lines[at]] * 2 if twice else []
    assert verify_program(program) != []
