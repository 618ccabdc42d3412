"""The simulator on schedules small enough to compute by hand: ops, transfers, pairs, wires."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    Compute,
    InvalidScheduleError,
    Link,
    Links,
    Passing,
    Profile,
    Schedule,
    StageProfile,
    Timing,
    Transfer,
    TransferKind,
    WaitReceive,
    in_sending_order,
    simulate,
    step_time,
    timed,
)
from pipeloom.solver import build_family
from tests.support.by_hand import by_hand
from tests.support.iterations import play_iterations, posted_between_ops

# the simulator on schedules small enough to compute by hand ---------------------------------------


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


def test_memory_is_held_from_f_to_b_and_in_part_to_w() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, m_b=10.0, m_w=3.0),), 1)
    for row, peak in [
        ("0F0 0B0 0W0 0F1 0B1 0W1", 10.0),
        ("0F0 0B0 0F1 0W0 0B1 0W1", 13.0),
        ("0F0 0F1 0B0 0B1 0W0 0W1", 20.0),
        ("0F0 0BW0 0F1 0BW1", 10.0),
    ]:
        assert simulate(by_hand(row, profile=profile)).peak_memory == (peak,)


# graph_simulator ----------------------------------------------------------------------------------


W, D = TransferKind.WEIGHT, TransferKind.GRADIENT
STAGE = StageProfile(t_f=2.0, t_b=3.0, t_w=1.0, m_b=5.0, m_w=1.0, weight_bytes=2e6)


def two_ranks(*transfers: Transfer, **profile: object) -> Schedule:
    """One stage, owned by rank 0, and one microbatch on each of two ranks."""
    cluster = replace(Profile((STAGE,), 2, shared_by=1), **profile)  # type: ignore[arg-type]
    plan = by_hand("0F0 0B0 0W0", "0F1 0B1 0W1", profile=cluster, passing=Passing.WEIGHTS)
    return replace(plan, transfers=transfers)


def test_ops_wait_for_weights_and_a_gradient_leaves_after_its_ops() -> None:
    #          0  2     5 6  7
    # rank 0   F  B     W | D-.
    # rank 1   W-|F  B    W   |      hop 0.5: F at 0.5, done at 6.5, which D finds done
    timing = simulate(
        two_ranks(
            Transfer(W, 0, 0, 0, 1, after=0, before=0),
            Transfer(D, 0, 0, 1, 0, after=3, before=3),
            t_comm=0.5,
        )
    )
    assert timing.start[0].tolist() == [0.0, 2.0, 5.0]
    assert timing.start[1].tolist() == [0.5, 2.5, 5.5]
    assert timing.transfers.tolist() == [[0.0, 0.5], [6.5, 7.0]]
    assert timing.peak_memory == (5.0, 5.0)


def test_a_cycle_of_ops_and_transfers_is_named() -> None:
    schedule = two_ranks(
        Transfer(W, 0, 0, 0, 1, after=1, before=0), Transfer(D, 0, 0, 1, 0, after=1, before=0)
    )
    with pytest.raises(InvalidScheduleError) as error:
        simulate(schedule)
    assert error.value.violations == (
        "rank 0 can never start 0F0 (its op 0): waits for gradient 0 copy 0 from rank 1 to 0",
        "rank 1 can never start 0F1 (its op 0): waits for weight 0 copy 0 from rank 0 to 1",
    )


@pytest.mark.parametrize(
    ("transfer", "words"),
    [
        (Transfer(W, 0, 0, 0, 2, 0, 0), "outside 2 ranks and 1 stage"),
        (Transfer(W, 10**30, 10**30, 0, 10**30, 0, 0), "outside 2 ranks and 1 stage"),
        (Transfer(W, 0, 0, 0, 1, 4, 0), "after 4, room 0, before 0"),
        (Transfer(W, 0, 0, 0, 1, 0, 4), "after 0, room 0, before 4"),
        (Transfer(W, 0, 0, 0, 1, 0, 0, 4), "after 0, room 4, before 0"),
    ],
)
def test_a_transfer_out_of_range_is_named(transfer: Transfer, words: str) -> None:
    with pytest.raises(InvalidScheduleError, match=rf"transfers\[0\].*{words}"):
        simulate(two_ranks(transfer))


def test_a_transfer_blocks_its_sender() -> None:
    #          0  2     5
    # rank 0   F | . B  W      the copy leaves at 2 and is there at 4.5: until then no B
    there = Transfer(W, 0, 0, 0, 1, after=1, before=0, blocks=1)
    timing = simulate(two_ranks(there, t_comm=2.5))
    assert timing.start[0].tolist() == [0.0, 4.5, 7.5]
    assert timing.start[1].tolist() == [4.5, 6.5, 9.5]
    with pytest.raises(InvalidScheduleError, match=r"op 0\): waits for weight 0 copy 0"):
        simulate(two_ranks(replace(there, blocks=0)))
    with pytest.raises(InvalidScheduleError, match=r"after 1, blocks 4, room 0, before 0 are not"):
        simulate(two_ranks(replace(there, blocks=4)))


def test_a_list_that_deadlocks_is_named_and_sending_order_mends_it() -> None:
    links = Links(Link(0.0, 1.0), shared=(((0, 1), (1, 0)),))
    home = Transfer(D, 0, 0, 1, 0, after=3, before=3)
    there = Transfer(W, 0, 0, 0, 1, after=0, before=0)
    schedule = two_ranks(home, there, links=links)
    with pytest.raises(InvalidScheduleError) as error:
        simulate(schedule)
    assert error.value.violations == (
        "rank 1 can never start 0F1 (its op 0): waits for weight 0 copy 0 from rank 0 to 1 "
        "(listed after gradient 0 copy 0 from rank 1 to 0, with which it shares a wire)",
    )
    mended = in_sending_order(schedule)
    assert mended.transfers == (there, home)
    assert simulate(mended).transfers.tolist() == [[0.0, 2.0], [8.0, 10.0]]


# pairs of an F and a BW that run at once: times, file format, dependencies
# --------------------------


def profile(ranks: int, share: float = 1.0, t: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Profile:
    """A profile in which a pair takes ``share`` of the time of both ops."""
    t_f, t_b, t_w = t
    stage = StageProfile(t_f, t_b, t_w, weight_bytes=1.0, t_fb=share * (t_f + t_b + t_w))
    return Profile((stage,) * ranks, ranks)


def paired() -> Schedule:
    """One rank, two microbatches: F0, then F1 with BW0, then BW1."""
    return replace(by_hand("0F0 0F1 0BW0 0BW1", profile=profile(1, 0.75)), pairs=((1,),))


def test_a_pair_starts_and_ends_together_and_is_work_once() -> None:
    timing = simulate(paired())
    assert timing.start[0].tolist() == [0.0, 1.0, 1.0, 3.25]
    assert timing.end[0].tolist() == [1.0, 3.25, 3.25, 5.25]
    assert timing.work == 5.25
    assert timing.peak_memory == (2.0,)
    assert step_time(paired()) == pytest.approx(5.25)


def test_both_inputs_of_a_pair_are_waited_for_before_it() -> None:
    schedule = build_family("dualpipe", profile(4), 8)
    row = compile_schedule(schedule).instructions[1]
    computes = [at for at, item in enumerate(row) if isinstance(item, Compute)]
    for at in schedule.pairs[1]:
        between = row[computes[at] + 1 : computes[at + 1]]
        assert not any(isinstance(item, WaitReceive) for item in between)


# a rank that sends and forwards transfers between its ops
# -------------------------------------------


PLAIN = StageProfile(2.0, 3.0, 1.0)


def relayed(hop: float, *moves: Transfer) -> Schedule:
    """Three ranks with one microbatch each; rank 0 owns the only stage. F's end at 2."""
    profile = Profile((PLAIN,), 3, t_comm=hop, shared_by=1)
    rows = [f"0F{j} 0BW{j}" for j in range(3)]
    plan = by_hand(*rows, profile=profile, passing=Passing.WEIGHTS)
    return timed(replace(plan, transfers=moves))


HERE = Transfer(W, 0, 0, 0, 1, after=0, before=2)
ON = Transfer(W, 0, 0, 1, 2, after=0, before=0)


def test_it_leaves_when_the_op_at_work_ends() -> None:
    # rank 1 runs its F from 0 to 2; a transfer that arrives at 0.5 is forwarded then, to rank 2
    planned = relayed(0.5, HERE, ON)
    assert planned.known_timing.transfers.tolist() == [[0.0, 0.5], [0.5, 1.0]]
    between = posted_between_ops(planned)
    assert simulate(between).transfers.tolist() == [[0.0, 0.5], [2.0, 2.5]]
    assert play_iterations(between).timings[0].start[2].tolist() == [2.5, 4.5]
    assert between.transfers == (replace(HERE, before=1), replace(ON, after=1))
