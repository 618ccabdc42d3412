"""A rank that does one thing at a time sends and passes on between its ops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from tests.support.by_hand import by_hand
from tests.support.iterations import play_iterations
from tests.support.posted import posted_between_ops

W = TransferKind.WEIGHT
STAGE = StageProfile(2.0, 3.0, 1.0)


def relayed(hop: float, *moves: Transfer) -> Schedule:
    """Three ranks with a microbatch each; the one stage is rank 0's, whose F's end at 2."""
    profile = Profile((STAGE,), 3, t_comm=hop, shared_by=1)
    rows = [f"0F{j} 0BW{j}" for j in range(3)]
    plan = by_hand(*rows, profile=profile, passing=Passing.WEIGHTS)
    return timed(replace(plan, transfers=moves))


HERE = Transfer(W, 0, 0, 0, 1, after=0, before=2)
ON = Transfer(W, 0, 0, 1, 2, after=0, before=0)


def test_it_leaves_when_the_op_at_work_ends() -> None:
    # rank 1 runs its F from 0 to 2; what comes at 0.5 leaves then, and rank 2 waits for it
    planned = relayed(0.5, HERE, ON)
    assert planned.known_timing.transfers.tolist() == [[0.0, 0.5], [0.5, 1.0]]
    between = posted_between_ops(planned)
    assert simulate(between).transfers.tolist() == [[0.0, 0.5], [2.0, 2.5]]
    assert play_iterations(between).timings[0].start[2].tolist() == [2.5, 4.5]
    assert between.transfers == (replace(HERE, before=1), replace(ON, after=1))


def test_the_next_op_waits_for_what_comes_late() -> None:
    """Planned to come at 1, before the BW at 2; it takes until 6, and the BW starts then."""
    between = posted_between_ops(relayed(1.0, HERE, ON))
    slower = replace(between.problem.profile, t_comm=6.0)
    timing = simulate(replace(between, problem=replace(between.problem, profile=slower)))
    assert timing.start[1].tolist() == [0.0, 6.0]
    assert timing.transfers.tolist() == [[0.0, 6.0], [6.0, 12.0]]


def test_what_sets_out_is_sent_an_op_before_it_is_planned_to_leave() -> None:
    """Planned during the F or the BW it is sent before the F; planned after the BW, before that."""
    direct = relayed(0.5, HERE, replace(ON, source=0, copy=1))
    assert posted_between_ops(direct).transfers == direct.transfers
    late = Transfer(W, 0, 2, 0, 1, after=0, before=2)
    for leaves, after in ((5.0, 0), (7.0, 1)):
        timing = replace(
            direct.known_timing,
            transfers=np.array([[0.0, 0.5], [0.5, 1.0], [leaves, leaves + 0.5]]),
        )
        planned = replace(direct, transfers=(*direct.transfers, late), timing=timing)
        assert [t.after for t in posted_between_ops(planned).transfers] == [0, 0, after]


def test_one_way_keeps_its_order() -> None:
    """What is planned to leave first is sent first, though it must wait for an op; so are the
    receives."""
    first = replace(HERE, after=1, room=1)
    second = Transfer(W, 0, 1, 0, 1, after=0, before=2)
    planned = relayed(0.5, first, second)
    timing = replace(planned.known_timing, transfers=np.array([[2.0, 2.5], [3.0, 3.5]]))
    posted = posted_between_ops(replace(planned, timing=timing)).transfers
    assert [(t.after, t.room) for t in posted] == [(1, 1), (1, 1)]
