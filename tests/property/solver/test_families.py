"""Whatever the problem, each family's schedule is valid and the simulator agrees with the
verifier."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import FAMILIES, build_family, find_family
from tests.support.families import fits

TIMES = st.one_of(st.just(0.0), st.floats(0.01, 50.0))
NAMES = st.sampled_from(
    [
        *FAMILIES,
        "interleaved-1f1b:1",
        "dualpipe",  # again: with all else that is drawn, pairs are rare
        "dualpipev",
        "interleaved-1f1b:3",
        "interleaved-1f1b-grouped:3",
        "looped-bfs:1",
        "wave:2",
        "fsdp:0",
        "zb-v:2",
        "zb-v:5",
    ]
)


@st.composite
def stages(draw: st.DrawFn) -> StageProfile:
    t_f, t_b, t_w, m_b = (draw(TIMES) for _ in range(4))
    t_fb = draw(st.one_of(st.none(), TIMES))
    return StageProfile(t_f, t_b, t_w, m_b, m_b * draw(st.floats(0.0, 1.0)), t_fb=t_fb)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    ranks = draw(st.integers(1, 5))
    rows = st.lists(TIMES, min_size=ranks, max_size=ranks).map(tuple)
    matrix = st.lists(rows, min_size=ranks, max_size=ranks).map(tuple)
    t_comm = draw(st.one_of(st.none(), TIMES, matrix))
    return Profile(tuple(draw(stages()) for _ in range(ranks)), ranks, t_comm)


def document(name: str, profile: Profile, microbatches: int) -> dict[str, Any]:
    schedule = build_family(name, profile, microbatches)
    return json.loads(json.dumps(dump_schedule(schedule)))  # type: ignore[no-any-return]


@given(NAMES, profiles(), st.integers(1, 11))
def test_every_family_is_valid(name: str, profile: Profile, microbatches: int) -> None:
    assume(fits(name, profile.ranks))
    assert verify_schedule(document(name, profile, microbatches)) == []


@given(NAMES, profiles(), st.integers(1, 11), st.floats(0.1, 0.999))
def test_the_smallest_limit_is_the_least_that_serves(
    name: str, profile: Profile, microbatches: int, share: float
) -> None:
    assume(fits(name, profile.ranks))
    timing = build_family(name, profile, microbatches).known_timing
    peak = max(timing.peak_memory)
    build_family(name, profile, microbatches, memory_limit=peak)
    if peak == 0.0:
        return
    with pytest.raises(InfeasibleError) as caught:
        build_family(name, profile, microbatches, memory_limit=peak * share)
    assert caught.value.smallest == peak
    assert timing.peak_memory[caught.value.rank] == peak


@given(NAMES, profiles(), st.integers(1, 6))
def test_a_family_supports_its_own_problem(name: str, profile: Profile, microbatches: int) -> None:
    assume(fits(name, profile.ranks))
    schedule = build_family(name, profile, microbatches)
    assert find_family(name).supports(schedule.problem) is None
    again = build_family(schedule.known_report.family, profile, microbatches)
    assert [row.tolist() for row in again.order] == [row.tolist() for row in schedule.order]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([10**400, 1.5, "F", "", "\x00"]),  # noqa: E501
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)  # fmt: skip


@given(st.sampled_from(["zb-h1", "weipipe-interleave", "fsdp", "chimera"]), st.data())
def test_no_document_makes_the_verifier_fall_over(name: str, data: st.DataObject) -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2, t_comm=0.5)
    root = document(name, profile, 2)
    inner: Any = root
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inner[key], dict | list) or not inner[key]:
            break
        inner = inner[key]
    keys = list(inner) if isinstance(inner, dict) else range(len(inner))
    key = data.draw(st.sampled_from(keys))
    inner[key] = data.draw(JSON)
    try:
        violations = verify_schedule(root)
    except InputError as error:
        violations = list(error.errors)
    assert all(isinstance(line, str) and "\n" not in line for line in violations)
