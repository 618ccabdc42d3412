"""The families: their orders, their memory, and what they say of a request they cannot serve."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from benchmarks.published.table5 import Row, load_rows
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import format_order
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import build_family, find_family

UNIT = StageProfile(1.0, 1.0, 1.0, m_b=1.0, m_w=0.5)


def equal_stages(ranks: int, stages: int | None = None) -> Profile:
    return Profile((UNIT,) * (stages or ranks), ranks)


def text(schedule: Schedule) -> list[str]:
    return [format_order(schedule.ops(rank)) for rank in range(schedule.problem.ranks)]


def peaks(schedule: Schedule) -> tuple[float, ...]:
    return schedule.known_timing.peak_memory


def test_a_remainder_costs_interleaving_no_more_than_its_work() -> None:
    def makespan(microbatches: int) -> float:
        timing = build_family("interleaved-1f1b:2", equal_stages(8), microbatches).known_timing
        return timing.makespan

    for count in range(8, 24):  # one more microbatch is 3 ms of work on each rank
        assert makespan(count + 1) - makespan(count) <= 3.0 + 1e-9


def test_one_chunk_is_1f1b() -> None:
    one = text(build_family("interleaved-1f1b:1", equal_stages(3), 5))
    assert one == text(build_family("1f1b", equal_stages(3), 5))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpipe", (9.0, 9.0, 9.0)),
        ("1f1b", (3.0, 2.0, 1.0)),
        ("zb-h1", (3.0, 2.5, 2.0)),
        ("zb-h2", (5.0, 4.0, 3.0)),
        ("interleaved-1f1b:2", (4.0, 3.0, 2.0)),
        ("interleaved-1f1b-grouped:2", (3.0, 2.5, 2.0)),
    ],
)
def test_memory_of_each_family(name: str, expected: tuple[float, ...]) -> None:
    assert peaks(build_family(name, equal_stages(3), 9)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "times", [(1, 1, 1), (4, 3, 2), (1, 3, 1), (1, 2, 1.4), (2, 1, 2), (1, 1, 3)]
)
@pytest.mark.parametrize(
    ("name", "bubble"),
    [
        ("gpipe", lambda f, b, w: f + b + w),
        ("1f1b", lambda f, b, w: f + b + w),
        ("interleaved-1f1b:2", lambda f, b, w: (f + b + w) / 2),
        ("interleaved-1f1b-grouped:2", lambda f, b, w: (f + b + w) / 2),
        ("zb-h1", lambda f, b, w: f + b - min(f, w)),
        ("zb-h2", lambda f, b, w: f + b - 2 * min(f, w)),
    ],
)
def test_bubbles_of_equal_stages_without_communication(
    name: str, bubble: Callable[..., float], times: tuple[float, float, float]
) -> None:
    timing = build_family(name, Profile((StageProfile(*times),) * 4, 4), 16).known_timing
    assert timing.period == pytest.approx(16 * sum(times) + 3 * max(0, bubble(*times)))


def test_interleaved_cuts_one_stage_a_rank() -> None:
    problem = build_family("interleaved-1f1b:3", equal_stages(2), 2).problem
    assert problem.stages == 6
    assert problem.profile.stages[5].t_f == pytest.approx(1 / 3)
    assert build_family("interleaved-1f1b", equal_stages(2), 2).problem.stages == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pipe", "family: expected one of gpipe, 1f1b, .*, got 'pipe'"),
        ("", "family: expected one of"),
        ("1f1b:2", "1f1b takes no parameter, got '1f1b:2'"),
        ("interleaved-1f1b:", "K a whole number >= 1, got 'interleaved-1f1b:'"),
        ("interleaved-1f1b:0", "K a whole number >= 1, got 'interleaved-1f1b:0'"),
        ("interleaved-1f1b:-2", "K a whole number >= 1, got"),
        ("interleaved-1f1b:100000", "interleaved-1f1b:65536 at most, got"),
        ("interleaved-1f1b:1.5", "K a whole number >= 1, got"),
        ("interleaved-1f1b:²", "K a whole number >= 1, got"),
    ],
)
def test_unknown_families_and_parameters_are_named(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_family(name)


def test_interleaved_wants_a_profile_that_its_chunks_fit() -> None:
    with pytest.raises(InputError, match=r"interleaved-1f1b:3: expected .* got 4"):
        build_family("interleaved-1f1b:3", equal_stages(2, stages=4), 2)
    with pytest.raises(InputError, match=r"interleaved-1f1b: expected .* got 5"):
        build_family("interleaved-1f1b", equal_stages(2, stages=5), 2)


@pytest.mark.parametrize("count", [0, -1, True])
def test_microbatches_are_a_whole_number(count: int) -> None:
    with pytest.raises(InputError, match="microbatches: expected a whole number >= 1"):
        build_family("1f1b", equal_stages(2), count)


def test_a_limit_below_the_family_names_rank_and_smallest() -> None:
    with pytest.raises(InfeasibleError, match=r"zb-h2: rank 0 holds 5, .* limit 4") as caught:
        build_family("zb-h2", equal_stages(3), 9, memory_limit=4.0)
    assert (caught.value.smallest, caught.value.rank) == (5.0, 0)
    assert peaks(build_family("zb-h2", equal_stages(3), 9, memory_limit=5.0))[0] == 5.0


def test_limits_may_differ_by_rank() -> None:
    profile = Profile((UNIT,) * 3, 3, memory_limit=(5.0, 3.5, math.inf))
    with pytest.raises(InfeasibleError) as caught:
        build_family("zb-h2", profile, 9)
    assert (caught.value.smallest, caught.value.rank) == (4.0, 1)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("row", load_rows(), ids=str)
def test_published_bubble_rates_to_four_digits(row: Row, name: str) -> None:
    timing = build_family(name, row.profile, row.microbatches).known_timing
    period = timing.bubble_rate(Objective.PERIOD)
    assert round(period, 4) == row.published[name]
    if name != "zb-h2":  # its figure is the period; of the others both are the same
        assert timing.bubble_rate(Objective.MAKESPAN) == pytest.approx(period, rel=1e-9)
