"""Schedules in which both weights and activations travel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from pipeloom.ir.model.transfers import owners
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.report.summaries import scope
from tests.support.by_hand import by_hand


def hand_made() -> Schedule:
    """Two ranks a stage; rank 0 owns stage 0, rank 2 stage 1.

    Weights take 1 ms, gradients 2, activations 0.5::

        rank 0   F0 F2 .  .  .   W 2.5: F0 is done at 1, stage 1's F0 runs 1.5 .. 2.5, its BW to 4.5
        rank 1   w F1
    """
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.0, 0.4e6, weight_bytes=0.9e6, grad_bytes=1.9e6)
    profile = Profile((stage,) * 2, 4, links=Links(Link(0.1, 1.0)))
    rows = ["0F0 0BW0", "0F1 0BW1", "1F0 1BW0", "1F1 1BW1"]
    transfers = [
        move
        for stage, owner in ((0, 0), (1, 2))
        for move in (
            Transfer(TransferKind.WEIGHT, stage, 0, owner, owner + 1, after=0, before=0),
            Transfer(TransferKind.GRADIENT, stage, 0, owner + 1, owner, after=2, before=2),
        )
    ]
    schedule = by_hand(*rows, profile=profile, passing=Passing.MIXED)
    return timed(replace(schedule, transfers=tuple(transfers)))


def test_the_times_of_one_where_both_travel() -> None:
    timing = simulate(hand_made())
    assert [start.tolist() for start in timing.start] == [
        [0, 5.0],
        [1, 6.0],
        [1.5, 2.5],
        [2.5, 3.5],
    ]
    # weights at once; D of stage 0 when BW of microbatch 1 ends at 8, of stage 1 at 5.5
    assert timing.transfers.tolist() == [[0, 1], [8, 10], [0, 1], [5.5, 7.5]]
    assert timing.period == 7.0
    assert timing.makespan == 8.0


def test_the_verifier_wants_the_weights_and_every_gradient() -> None:
    schedule = hand_made()
    for missing, complaint in ((0, "weights of stage 0 are not there"), (3, "no D of stage 1")):
        rest = tuple(t for i, t in enumerate(schedule.transfers) if i != missing)
        found = verify_schedule(dump_schedule(timed(replace(schedule, transfers=rest))))
        assert any(complaint in line for line in found), found


def test_what_goes_over_each_wire() -> None:
    sent = traffic(hand_made())
    assert sent[0, 1] == sent[2, 3] == 0.9e6
    assert sent[1, 0] == sent[3, 2] == 1.9e6
    assert sent[0, 2] == sent[2, 0] == sent[1, 3] == sent[3, 1] == 0.4e6
    assert sent.sum() == pytest.approx(2 * 2.8e6 + 4 * 0.4e6)
    assert owners(hand_made()) == (0, 2)


def test_words_say_what_travels() -> None:
    found = scope(hand_made().problem)
    assert found.startswith("the same placement, passing activations and weights")
