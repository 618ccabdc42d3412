"""What is written reads back as it was: profiles, schedules and programs."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom.compiler import compile_schedule
from pipeloom.ir.formats import (
    dump_profile,
    dump_program,
    dump_schedule,
    parse_profile,
    parse_program,
    parse_schedule,
)
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.solver.families import FAMILIES, build_family
from tests.support.families import fits

AMOUNTS = st.floats(0.0, 1e12)
SIZES = st.none() | AMOUNTS
LINKS = st.builds(Link, AMOUNTS, st.floats(1e-3, 1e6))


@st.composite
def stages(draw: st.DrawFn) -> StageProfile:
    m_b = draw(AMOUNTS)
    times = [draw(st.floats(0.0, 1e6)) for _ in range(3)]
    sizes = [draw(SIZES) for _ in range(4)]
    return StageProfile(*times, m_b, m_b * draw(st.floats(0.0, 1.0)), *sizes)


@st.composite
def profiles(draw: st.DrawFn, number: int | None = None) -> Profile:
    ranks = draw(st.integers(1, 4))
    rank = st.integers(0, ranks - 1)
    rows = st.lists(AMOUNTS, min_size=ranks, max_size=ranks).map(tuple)
    limits = st.none() | st.lists(AMOUNTS | st.just(math.inf), min_size=ranks, max_size=ranks).map(
        tuple
    )
    count = draw(st.integers(1, 8)) if number is None else ranks
    pairs = st.lists(st.tuples(rank, rank, LINKS), max_size=3).map(tuple)
    return Profile(
        tuple(draw(stages()) for _ in range(count)),
        ranks,
        draw(st.none() | AMOUNTS | st.lists(rows, min_size=ranks, max_size=ranks).map(tuple)),
        draw(st.none() | st.builds(Links, LINKS, pairs)),
        draw(limits),
        draw(limits),
        draw(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=5)),
    )


def through_text(document: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(document, allow_nan=False))  # type: ignore[no-any-return]


@given(profiles())
def test_profiles(profile: Profile) -> None:
    assert parse_profile(through_text(dump_profile(profile)), "p") == profile


@given(
    profiles(number=0),
    st.sampled_from(list(FAMILIES)),
    st.integers(1, 6),
    st.sampled_from(Objective),
)
def test_schedules_and_programs(
    profile: Profile, name: str, microbatches: int, objective: Objective
) -> None:
    assume(fits(name, profile.ranks))
    schedule = build_family(name, profile, microbatches, memory_limit=1e13, objective=objective)
    document = through_text(dump_schedule(schedule))
    again = parse_schedule(document, "s")
    assert through_text(dump_schedule(again)) == document
    assert again.problem.placement == schedule.problem.placement
    assert again.problem.objective is objective
    assert again.report == schedule.report
    program = compile_schedule(schedule)
    text = through_text(dump_program(program))
    assert through_text(dump_program(parse_program(text, "p"))) == text
