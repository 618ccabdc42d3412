"""Steady states by hand, and against plain loops and the simulator where nothing contends."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir import (
    InvalidScheduleError,
    Link,
    Links,
    Passing,
    Profile,
    Schedule,
    StageProfile,
    Transfer,
    TransferKind,
    in_sending_order,
    simulate,
    step_between_ops,
    step_time,
)
from pipeloom.solver import FAMILIES, build_family, work_bound
from tests.support.by_hand import by_hand
from tests.support.families import families_of
from tests.support.iterations import play_iterations
from tests.support.plain_times import Playing, Thing
from tests.support.random_schedules import profiles, streamed_orders, weight_problems

# replays by hand: messages that wait for each other, iterations that follow each other ------------


W, D = TransferKind.WEIGHT, TransferKind.GRADIENT
STAGE = StageProfile(1.0, 2.0, 0.0, activation_bytes=2e6, weight_bytes=3e6, grad_bytes=4e6)


def schedule(
    rows: list[str], passing: Passing, *transfers: Transfer, **profile: object
) -> Schedule:
    """Stages alike; 1 GB/s without latency, so that 1 MB takes 1 ms."""
    stages = by_hand(*rows).problem.stages
    given = {"links": Links(Link(0.0, 1.0)), **profile}
    cluster = replace(Profile((STAGE,), len(rows), shared_by=stages), **given)  # type: ignore[arg-type]
    return replace(by_hand(*rows, profile=cluster, passing=passing), transfers=transfers)


def test_activations_go_over_a_link_one_after_the_other() -> None:
    #          0  1  2  3     5     7     9
    # rank 0   F0 F1 F2
    # 0 to 1      [  x0  ][ x1 ][ x2 ]           an F a ms, a message two
    # rank 1            F0    F1    F2 B2 ..
    gpipe = schedule(
        ["0F0 0F1 0F2 0BW2 0BW1 0BW0", "1F0 1F1 1F2 1BW2 1BW1 1BW0"], Passing.ACTIVATIONS
    )
    (timing,) = play_iterations(gpipe).timings
    assert timing.start[1].tolist() == [3.0, 5.0, 7.0, 8.0, 10.0, 12.0]
    assert timing.start[0].tolist() == [0.0, 1.0, 2.0, 12.0, 14.0, 16.0]
    assert simulate(gpipe).start[1].tolist() == [3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
    # rank 1 waits in vain for x0 of the next iteration until rank 0 is done, at 18
    _, second = play_iterations(gpipe, 2).timings
    assert second.start[1].tolist() == [21.0, 23.0, 25.0, 26.0, 28.0, 30.0]
    assert step_time(gpipe) == 18.0


def one_stage(*more: Transfer, **profile: object) -> Schedule:
    """Rank 0 owns the one stage; rank 1 needs its weights and sends its gradient."""
    there = Transfer(W, 0, 0, 0, 1, after=0, before=0)
    home = Transfer(D, 0, 0, 1, 0, after=2, before=2)
    return schedule(["0F0 0BW0", "0F1 0BW1"], Passing.WEIGHTS, there, home, *more, **profile)


def test_weights_set_out_again_once_all_gradients_are_home() -> None:
    #          0   1     3        6     10
    # rank 0   F0  BW0                       | F0
    # rank 1   [w      ]F1 BW1  [ D    ]     | [w      ] F1     done itself when D sets out, at 6
    both = play_iterations(one_stage(), 2)
    assert both.begin.tolist() == [[0.0, 0.0], [10.0, 6.0], [20.0, 16.0]]
    assert both.timings[1].start[0].tolist() == [10.0, 11.0]
    assert both.timings[1].start[1].tolist() == [13.0, 14.0]
    assert both.timings[1].transfers.tolist() == [[10.0, 13.0], [16.0, 20.0]]
    assert step_time(one_stage()) == 10.0


def test_replicas_sum_their_gradients_before_the_next_iteration() -> None:
    """4 MB in two parts of 2 ms, each sent twice; rank 1 is the later one, at 6."""
    rows = ["0F0 0BW0", "0F1 0BW1 0F2 0BW2"]
    plain = schedule(rows, Passing.WEIGHTS)
    assert play_iterations(plain).begin[1].tolist() == [10.0, 10.0]
    one_wire = Links(Link(0.0, 1.0), shared=(((0, 1), (1, 0)),))
    assert step_time(schedule(rows, Passing.WEIGHTS, links=one_wire)) == 14.0
    assert step_time(schedule(rows, Passing.WEIGHTS, links=None, t_comm=0.5)) == 7.0


def test_what_can_never_run_is_named() -> None:
    waits = Transfer(W, 0, 1, 1, 0, after=2, before=0)
    back = Transfer(D, 0, 1, 0, 1, after=1, before=0)
    with pytest.raises(InvalidScheduleError, match="rank 0 can never start 0F0"):
        step_time(one_stage(waits, back))
    with pytest.raises(InvalidScheduleError, match="never made"):
        play_iterations(schedule(["0F0 0W0"], Passing.ACTIVATIONS))


# replays against plain loops, and against the simulator where nothing contends --------------------


TIMES = st.sampled_from([0.0, 0.125, 1.0, 1.75, 3.0])  # sums are exact, so what is equal is equal
LATENCIES = st.sampled_from([0.125, 0.5, 1.0])
EXACT = {"times": TIMES, "latencies": LATENCIES, "weight": 3e6}  # a third of it is exact too


@st.composite
def built(draw: st.DrawFn, *, contended: bool) -> Schedule:
    """A schedule of any family."""
    ranks = draw(st.integers(1, 4))
    name = draw(st.sampled_from([name for name in families_of(ranks) if name in FAMILIES]))
    profile = draw(profiles(ranks, ranks, **EXACT, contended=contended))
    return build_family(name, profile, draw(st.integers(1, 5)), memory_limit=math.inf)


def mixed(*, contended: bool) -> st.SearchStrategy[Schedule]:
    """A mixed schedule: any placement, any order, with the transfers that it needs."""
    posed = weight_problems(Passing.MIXED, (3, 3, 4), **EXACT, contended=contended)
    return posed.flatmap(lambda problem: streamed_orders(problem, fused=1.0))


def assert_played(schedule: Schedule, iterations: int) -> None:
    found, plain = play_iterations(schedule, iterations), Playing(schedule, iterations)
    for i, timing in enumerate(found.timings):
        for rank, row in enumerate(timing.start):
            expected = [plain.starts[Thing(i, "0 op", (rank, k))] for k in range(len(row))]
            assert row.tolist() == expected
        expected = [
            plain.starts[Thing(i, "3 transfer", (k,))] for k in range(len(timing.transfers))
        ]
        assert timing.transfers[:, 0].tolist() == expected
        ended = [plain.ended(rank, i) for rank in plain.ranks]
        assert found.begin[i + 1].tolist() == ended


@given(built(contended=True) | mixed(contended=True), st.integers(1, 3))
def test_everything_starts_when_plain_loops_say(schedule: Schedule, iterations: int) -> None:
    assert_played(schedule, iterations)


@given(built(contended=False) | mixed(contended=False))
def test_one_iteration_without_contention_is_what_is_simulated(schedule: Schedule) -> None:
    (timing,), simulated = play_iterations(schedule).timings, simulate(schedule)
    assert all(map(np.array_equal, timing.start, simulated.start))
    assert all(map(np.array_equal, timing.end, simulated.end))
    assert np.array_equal(timing.transfers, simulated.transfers)
    assert timing.peak_memory == simulated.peak_memory


@given(built(contended=True) | mixed(contended=True))
def test_the_step_time_is_what_many_iterations_take_each(schedule: Schedule) -> None:
    begin = play_iterations(schedule, 200).begin.max(axis=1)
    assert np.isclose((begin[200] - begin[100]) / 100, step_time(schedule), rtol=0.01)


@given(built(contended=True) | mixed(contended=True) | built(contended=False))
def test_no_step_is_below_its_bound(schedule: Schedule) -> None:
    free = replace(schedule.problem, memory_limit=(math.inf,) * schedule.problem.ranks)
    assert work_bound(free).value <= step_between_ops(schedule) * (1 + 1e-9)


# whoever is ready first goes first, and rounding does not decide who that is ----------------------


def test_rounding_does_not_decide_who_goes_first() -> None:
    """Regression: with equal weights, fsdp's step time varied by 10 % between similar microbatch
    sizes."""
    assert 0.1 + 0.2 > 0.3
    times = (0.1, 0.2), (0.0, 0.3)  # two gradients are ready at once, for one wire
    stage = StageProfile.of([StageProfile(f, b, 0.0, grad_bytes=1e6) for f, b in times])
    there = [Transfer(W, 0, rank, 2, rank, after=0, before=0) for rank in (0, 1)]
    home = [Transfer(D, 0, rank, rank, 2, after=2, before=0) for rank in (0, 1)]
    links = Links(Link(0.0, 1.0), shared=(((0, 2), (1, 2)),))
    rows, given = ["0F0 0BW0", "0F1 0BW1", ""], {"stages": (stage,), "links": links}
    both = schedule(rows, Passing.WEIGHTS, *there, *home, **given)
    (timing,) = play_iterations(both).timings
    assert timing.transfers[2:, 1].tolist() == pytest.approx([1.3, 2.3])
    assert in_sending_order(both).transfers == both.transfers
