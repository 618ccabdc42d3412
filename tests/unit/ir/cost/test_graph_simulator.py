from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.transfer_order import in_sending_order
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from tests.support.by_hand import by_hand

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


@pytest.mark.parametrize(
    ("profile", "weight", "gradient"),
    [
        ({}, 0.0, 0.0),
        ({"t_comm": 0.5}, 0.5, 0.5),
        ({"t_comm": ((0.0, 3.0), (4.0, 0.0))}, 3.0, 4.0),
        ({"t_comm": 0.5, "links": Links(Link(0.25, 1.0))}, 2.25, 2.25),
        ({"links": Links(Link(9.0, 9.0), ((1, 0, Link(1.0, 2.0)),))}, 2.0, 2.0),
        ({"stages": (replace(STAGE, grad_bytes=8e6),), "links": Links(Link(0.0, 1.0))}, 2.0, 8.0),
        (
            {"stages": (replace(STAGE, weight_bytes=None),), "links": Links(Link(0.5, 1.0))},
            0.5,
            0.5,
        ),
    ],
)
def test_delays_follow_links_and_sizes_then_t_comm(
    profile: dict[str, object], weight: float, gradient: float
) -> None:
    timing = simulate(
        two_ranks(Transfer(W, 0, 0, 0, 1, 0, 0), Transfer(D, 0, 0, 1, 0, 3, 3), **profile)
    )
    assert np.diff(timing.transfers).ravel().tolist() == [weight, gradient]


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
        (Transfer(W, 1, 0, 0, 1, 0, 0), "outside 2 ranks and 1 stage"),
        (Transfer(W, 10**30, 10**30, 0, 10**30, 0, 0), "outside 2 ranks and 1 stage"),
        (Transfer(W, 0, 0, 0, 1, 10**30, 0), f"after {10**30}, room 0, before 0"),
        (Transfer(W, 0, 0, 0, 1, 4, 0), "after 4, room 0, before 0"),
        (Transfer(W, 0, 0, 0, 1, 0, 4), "after 0, room 0, before 4"),
        (Transfer(W, 0, 0, 0, 1, 0, 0, 4), "after 0, room 4, before 0"),
    ],
)
def test_a_transfer_out_of_range_is_named(transfer: Transfer, words: str) -> None:
    with pytest.raises(InvalidScheduleError, match=rf"transfers\[0\].*{words}"):
        simulate(two_ranks(transfer))


def test_numbers_of_any_length_are_out_of_range() -> None:
    with pytest.raises(InvalidScheduleError, match="beyond any op"):
        simulate(two_ranks(Transfer(W, 0, 0, 0, 1, 10**400, 0)))


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


def four_ranks(shared: object, *transfers: Transfer) -> list[list[float]]:
    """When transfers of 2 ms run between four ranks that compute nothing that matters."""
    links = Links(Link(0.0, 1.0), shared=shared)  # type: ignore[arg-type]
    profile = Profile((STAGE,), 4, links=links, shared_by=1)
    rows = [f"0F{j} 0B{j} 0W{j}" for j in range(4)]
    plan = by_hand(*rows, profile=profile, passing=Passing.WEIGHTS)
    schedule = replace(plan, transfers=transfers)
    found: list[list[float]] = simulate(schedule).transfers.tolist()
    return found


def test_what_shares_a_wire_waits_and_what_does_not_runs_at_once() -> None:
    pairs = ((0, 1), (0, 2), (1, 2), (2, 0), (0, 3))
    moves = [Transfer(W, 0, k, a, b, after=0, before=3) for k, (a, b) in enumerate(pairs)]
    at_once, next_2, next_4 = [0.0, 2.0], [2.0, 4.0], [4.0, 6.0]
    assert four_ranks(Sharing.PAIRS, *moves) == [at_once] * 5
    # rank 0 sends three, rank 2 is sent two
    assert four_ranks(Sharing.PORTS, *moves) == [at_once, next_2, next_4, at_once, next_4]
    # 0 to 2 goes by 1, over both wires at once; 2 to 0 by 3
    assert four_ranks(Sharing.RING, *moves) == [at_once, next_2, next_4, at_once, at_once]
    group = ((0, 1), (2, 0), (0, 3))
    assert four_ranks((group,), *moves) == [at_once, at_once, at_once, next_2, next_4]


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


def test_sending_order_is_first_come_first_served() -> None:
    """All from rank 0 to 1: ready at 5, at 0, at 0 and, once the third is back at 6, at 6."""
    late = Transfer(W, 0, 0, 0, 1, after=2, before=3)
    first = Transfer(W, 0, 1, 0, 1, after=0, before=3)
    second = Transfer(W, 0, 2, 0, 1, after=0, before=3)
    back = Transfer(W, 0, 2, 1, 0, after=0, before=3)
    again = Transfer(W, 0, 2, 0, 1, after=0, before=3)
    schedule = in_sending_order(
        two_ranks(late, first, second, back, again, links=Links(Link(0.0, 1.0)))
    )
    assert schedule.transfers == (first, second, back, late, again)
    assert simulate(schedule).transfers.tolist() == [
        [0.0, 2.0], [2.0, 4.0], [4.0, 6.0], [5.0, 7.0], [7.0, 9.0]
    ]  # fmt: skip
