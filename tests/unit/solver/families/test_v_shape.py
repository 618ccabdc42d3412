"""The families with two chunks a rank in a V: their orders, memory and bubbles."""

from __future__ import annotations

import pytest

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Timing
from pipeloom.solver.families import FAMILIES, build_family

UNIT = StageProfile(1.0, 1.0, 1.0, m_b=1.0, m_w=1.0)
NAMES = ["zb-v", "v-half", "v-min"]


def chunks(ranks: int) -> Profile:
    return Profile((UNIT,) * 2 * ranks, ranks)


def text(schedule: Schedule) -> list[str]:
    return [format_order(schedule.ops(rank)) for rank in range(schedule.problem.ranks)]


def timing_of(name: str, ranks: int, microbatches: int) -> Timing:
    return build_family(name, chunks(ranks), microbatches).known_timing


def test_zb_v_fills_its_memory_before_the_first_microbatch_is_back() -> None:
    assert text(build_family("zb-v", chunks(2), 4)) == [
        "0F0 0F1 0F2 3F0 3B0 3W0 3F1 3B1 3W1 0F3 0B0 0W0 3F2 3B2 3W2 0B1 0W1 3F3 3B3 0B2 3W3 0B3 "
        "0W2 0W3",
        "1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 1F3 1B1 1W1 2F3 2B2 1B2 2B3 1B3 2W2 1W2 "
        "2W3 1W3",
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 7, 8, 9, 12])
def test_memory_and_bubbles_at_equal_times(ranks: int) -> None:
    """In chunks and in slots of one op; without communication."""
    count = 3 * ranks
    zb_v, v_half, v_min = (timing_of(name, ranks, count) for name in NAMES)
    assert max(zb_v.peak_memory) == 2 * ranks
    assert max(v_half.peak_memory) == ranks + 2 - ranks % 2
    assert max(v_min.peak_memory) <= (2 * ranks + 8) / 3
    assert zb_v.period == 6 * count
    half, least = (3 * ranks - 4, 4 * ranks - 5) if ranks > 1 else (0, 0)
    assert v_half.period == v_half.makespan == 6 * count + half + (ranks % 2 == 0)
    assert v_min.period == v_min.makespan == 6 * count + least + 2 * (ranks % 3 == 0)


def test_zb_v_keeps_to_the_room_it_is_given_and_gains_by_it() -> None:
    timings = [timing_of(f"zb-v:{room}", 4, 12) for room in (2, 4, 6, 8, 12)]
    peaks = [max(timing.peak_memory) for timing in timings]
    assert peaks[:4] == [2.0, 4.0, 6.0, 8.0]
    assert peaks[4] <= 12.0
    periods = [timing.period for timing in timings]
    assert periods == sorted(periods, reverse=True)
    assert text(build_family("zb-v:8", chunks(4), 12)) == text(build_family("zb-v", chunks(4), 12))


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_of_one_stage_a_rank_is_cut(name: str) -> None:
    halves = Profile((StageProfile(2.0, 2.0, 2.0, 2.0, 2.0),) * 3, 3)
    assert text(build_family(name, halves, 5)) == text(build_family(name, chunks(3), 5))
    with pytest.raises(InputError, match=rf"{name}: expected .* of 3 or 6 stages .* got 9"):
        build_family(name, Profile((UNIT,) * 9, 3), 5)


@pytest.mark.parametrize("name", NAMES)
def test_other_placements_are_refused_with_the_reason(name: str) -> None:
    profile = chunks(2)
    limit = profile.limit_from(None)
    interleaved = Problem(profile, 2, Placement.interleaved(2, 2), limit)
    linear = Problem.linear(Profile((UNIT,) * 2, 2), 2)
    assert "interleaved:2" in (FAMILIES[name].supports(interleaved) or "")
    assert "needs 2 stages a rank, not 2 on 2" in (FAMILIES[name].supports(linear) or "")
    assert FAMILIES[name].supports(Problem(profile, 2, Placement.v(2), limit)) is None


def test_below_its_memory_v_min_says_what_it_needs() -> None:
    with pytest.raises(InfeasibleError) as caught:
        build_family("v-min", chunks(8), 24, memory_limit=5.0)
    assert caught.value.smallest == 8.0
