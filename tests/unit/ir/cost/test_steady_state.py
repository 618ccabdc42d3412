"""Replays by hand: messages that wait for each other, iterations that follow each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.steady_state.steady_state import step_time
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.links import Link, Links, Sharing
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from tests.support.by_hand import by_hand
from tests.support.iterations import play_iterations

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
    assert play_iterations(gpipe, 2).timings[1].start[1].tolist() == [
        21.0,
        23.0,
        25.0,
        26.0,
        28.0,
        30.0,
    ]
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


def test_replicated_stages_are_summed_one_after_the_other() -> None:
    #          0  1  2    4    6                three ranks, a microbatch and both stages on each
    rows = [f"0F{j} 1F{j} 1BW{j} 0BW{j}" for j in range(3)]
    three = schedule(rows, Passing.WEIGHTS, stages=(replace(STAGE, grad_bytes=3e6),) * 2)
    assert step_time(three) == 6.0 + 2 * 4 * 1.0


def test_a_rank_without_work_has_no_pace() -> None:
    rows = ["0F0 0BW0", "", ""]
    assert step_time(schedule(rows, Passing.ACTIVATIONS)) == 3.0
    empty = replace(STAGE, t_f=0.0, t_b=0.0)
    idle = schedule(rows, Passing.ACTIVATIONS)
    problem = replace(idle.problem, profile=replace(idle.problem.profile, stages=(empty,)))
    assert step_time(replace(idle, problem=problem)) == 0.0


def test_where_activations_and_weights_travel_they_share_the_wires() -> None:
    """Rank 0 owns both stages and runs all but the second's microbatch 1, which rank 1 runs."""
    rows = ["0F0 0F1 1F0 1BW0 0BW0 0BW1", "1F1 1BW1"]
    there = Transfer(W, 1, 0, 0, 1, after=0, before=0)
    home = Transfer(D, 1, 0, 1, 0, after=2, before=6)
    hybrid = schedule(rows, Passing.MIXED, there, home)
    (timing,) = play_iterations(hybrid).timings
    # the weights leave first, until 3; then x1, ready at 2, until 5
    assert timing.start[1].tolist() == [5.0, 6.0]
    assert simulate(hybrid).start[1].tolist() == [4.0, 5.0]
    # dy1 and D are both ready at 8: dy1 first, until 10
    assert timing.transfers.tolist() == [[0.0, 3.0], [10.0, 14.0]]
    assert timing.start[0].tolist() == [0.0, 1.0, 2.0, 3.0, 5.0, 10.0]
    assert step_time(hybrid) == 14.0
    ports = replace(hybrid.problem.profile, links=Links(Link(0.0, 1.0), shared=Sharing.PORTS))
    moved = replace(hybrid, problem=replace(hybrid.problem, profile=ports))
    assert step_time(moved) == 14.0


def test_what_can_never_run_is_named() -> None:
    waits = Transfer(W, 0, 1, 1, 0, after=2, before=0)
    back = Transfer(D, 0, 1, 0, 1, after=1, before=0)
    with pytest.raises(InvalidScheduleError, match="rank 0 can never start 0F0"):
        step_time(one_stage(waits, back))
    with pytest.raises(InvalidScheduleError, match="never made"):
        play_iterations(schedule(["0F0 0W0"], Passing.ACTIVATIONS))
