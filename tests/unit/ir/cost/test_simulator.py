"""The simulator on schedules small enough to be timed by hand."""

from __future__ import annotations

import pytest

from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Timing
from tests.support.by_hand import UNIT, by_hand


def starts(timing: Timing) -> list[list[float]]:
    return [row.tolist() for row in timing.start]


def test_an_op_starts_when_rank_and_inputs_are_there() -> None:
    # rank 0   0F0 0-2   0F1 2-4   0B0 6-7   0W0 7-8   0B1 9-10   0W1 10-11
    # rank 1   1F0 2.5-3.5   1B0 3.5-5.5   1F1 5.5-6.5   1B1 6.5-8.5   1W0 8.5-9   1W1 9-9.5
    stages = (StageProfile(2.0, 1.0, 1.0), StageProfile(1.0, 2.0, 0.5))
    rows = "0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"
    timing = simulate(by_hand(*rows, profile=Profile(stages, 2, t_comm=0.5)))
    assert starts(timing) == [[0.0, 2.0, 6.0, 7.0, 9.0, 10.0], [2.5, 3.5, 5.5, 6.5, 8.5, 9.0]]
    assert timing.spans == (11.0, 7.0)
    assert (timing.period, timing.makespan, timing.work) == (11.0, 11.0, 15.0)


def test_a_fused_backward_sends_when_all_of_it_ends() -> None:
    apart = simulate(by_hand("0F0 0B0 0W0", "1F0 1B0 1W0"))
    fused = simulate(by_hand("0F0 0BW0", "1F0 1BW0"))
    assert starts(apart)[0] == [0.0, 3.0, 4.0]
    assert starts(fused)[0] == [0.0, 4.0]


def test_one_rank_may_split_what_another_fuses() -> None:
    timing = simulate(by_hand("0F0 0BW0", "1F0 1B0 1W0"))
    assert starts(timing) == [[0.0, 3.0], [1.0, 2.0, 3.0]]


def test_delays_are_read_by_sender() -> None:
    profile = Profile((UNIT,) * 2, 2, t_comm=((0.0, 0.25), (8.0, 0.0)))
    timing = simulate(by_hand("0F0 0BW0", "1F0 1BW0", profile=profile))
    assert starts(timing) == [[0.0, 12.25], [1.25, 2.25]]


def test_memory_is_held_from_f_to_b_and_in_part_to_w() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, m_b=10.0, m_w=3.0),), 1)
    for row, peak in [
        ("0F0 0B0 0W0 0F1 0B1 0W1", 10.0),
        ("0F0 0B0 0F1 0W0 0B1 0W1", 13.0),
        ("0F0 0F1 0B0 0B1 0W0 0W1", 20.0),
        ("0F0 0BW0 0F1 0BW1", 10.0),
    ]:
        assert simulate(by_hand(row, profile=profile)).peak_memory == (peak,)


def test_the_period_is_the_longest_span_of_one_rank() -> None:
    profile = Profile((UNIT,) * 2, 2, t_comm=5.0)
    timing = simulate(by_hand("0F0 0B0 0W0", "1F0 1B0 1W0", profile=profile))
    assert (timing.spans, timing.period, timing.makespan) == ((15.0, 3.0), 15.0, 15.0)
    alone = simulate(by_hand("0F0 1F0 1B0 0B0 0W0 1W0", "", profile=profile))
    assert (alone.spans, alone.makespan) == ((6.0, 0.0), 6.0)
    assert alone.bubble_rate(Objective.PERIOD) == pytest.approx(0.5)


def test_no_time_at_all_is_no_bubble() -> None:
    profile = Profile((StageProfile(0.0, 0.0, 0.0),) * 2, 2)
    timing = simulate(by_hand("0F0 0BW0", "1F0 1BW0", profile=profile))
    assert timing.bubble_rate(Objective.PERIOD) == 0.0


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("0BW0 0F0", "1F0 1BW0"), ["rank 0 can never start 0BW0 (its op 0)", "rank 1 can never start 1F0"]),  # noqa: E501
        (("0F0 0F1 0BW0 0BW1", "1F0 1F1 1BW1 1BW0"), None),
        (("0F0 0BW0 0F1 0BW1", "1F1 1F0 1BW1 1BW0"), ["rank 0 can never start 0BW0 (its op 1)", "rank 1 can never start 1F1 (its op 0)"]),  # noqa: E501
        (("0F0 0W0 0B0", "1F0 1B0 1W0"), ["rank 0 can never start 0W0 (its op 1)"]),
    ],
)  # fmt: skip
def test_an_order_that_can_never_run_names_where_each_rank_stops(
    rows: tuple[str, str], expected: list[str] | None
) -> None:
    stuck = by_hand(*rows)
    if expected is None:
        assert simulate(stuck).makespan > 0
        return
    with pytest.raises(InvalidScheduleError) as caught:
        simulate(stuck)
    assert len(caught.value.violations) == len(expected)
    for line, start in zip(caught.value.violations, expected, strict=True):
        assert line.startswith(start)


def test_timed_changes_the_timing_alone() -> None:
    plain = by_hand("0F0 0BW0")
    after = timed(plain)
    assert plain.timing is None
    assert after.timing is not None
    assert after.order is plain.order
