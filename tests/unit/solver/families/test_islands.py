"""Placements in which weights travel inside islands of ranks and activations between, or the
reverse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.cost.traffic import traffic
from pipeloom.ir.formats import dump_schedule, parse_schedule
from pipeloom.ir.model.ops import parse_order
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from pipeloom.ir.model.transfers import owners
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.report.summaries import scope
from pipeloom.solver.core.decomposition import parts_of
from pipeloom.solver.families import build_family


def test_weights_inside() -> None:
    placement = Placement.weights_inside(4, 2, stages=4)
    assert placement.matrix(4, 3).tolist() == [[0, 1, 0], [0, 1, 0], [2, 3, 2], [2, 3, 2]]
    assert placement.passing is Passing.MIXED
    assert placement.name == "weights-inside:2"


def test_activations_inside() -> None:
    placement = Placement.activations_inside(6, 2, stages=4)
    assert placement.matrix(4, 4).tolist() == [
        [0, 2, 4, 0],
        [0, 2, 4, 0],
        [1, 3, 5, 1],
        [1, 3, 5, 1],
    ]


def test_stages_that_do_not_go_round_are_dealt_as_evenly_as_can_be() -> None:
    assert Placement.weights_inside(3, 1, 5).owners == (0, 0, 1, 1, 2)
    assert Placement.activations_inside(3, 3, 5).owners == (0, 0, 1, 1, 2)


@pytest.mark.parametrize("islands", [Placement.weights_inside, Placement.activations_inside])
def test_islands_that_there_cannot_be(islands: type[Placement.weights_inside]) -> None:
    with pytest.raises(ValueError, match=r"4 ranks cannot be cut into islands of 3"):
        islands(4, 3, 4)
    with pytest.raises(ValueError, match="islands of 0"):
        islands(4, 0, 4)
    with pytest.raises(ValueError, match="expected a stage for each"):
        islands(9, 3, 2)


def hand_made() -> Schedule:
    """Two islands of two ranks, a stage each; rank 0 owns stage 0, rank 2 stage 1.

    Weights take 1 ms, gradients 2, activations 0.5::

        rank 0   F0 F2 .  .  .   W 2.5: F0 is done at 1, stage 1's F0 runs 1.5 .. 2.5, its BW to 4.5
        rank 1   w F1
    """
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.0, 0.4e6, weight_bytes=0.9e6, grad_bytes=1.9e6)
    profile = Profile((stage,) * 2, 4, links=Links(Link(0.1, 1.0)))
    placement = Placement.weights_inside(4, 2, 2)
    problem = Problem(profile, 2, placement, profile.limit_from(None))
    rows = ["0F0 0BW0", "0F1 0BW1", "1F0 1BW0", "1F1 1BW1"]
    transfers = [
        move
        for stage, owner in ((0, 0), (1, 2))
        for move in (
            Transfer(TransferKind.WEIGHT, stage, 0, owner, owner + 1, after=0, before=0),
            Transfer(TransferKind.GRADIENT, stage, 0, owner + 1, owner, after=2, before=2),
        )
    ]
    schedule = Schedule.of(problem, [parse_order(row) for row in rows], "by hand")
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


def test_it_is_valid_and_reads_back() -> None:
    document = dump_schedule(hand_made())
    assert verify_schedule(document) == []
    again = parse_schedule(document, "file")
    assert again.problem.placement == hand_made().problem.placement
    assert dump_schedule(timed(again)) == document


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


def test_words_say_what_travels_where() -> None:
    problem = hand_made().problem
    words = "passing weights inside islands of 2 ranks, activations between"
    assert scope(problem) == words
    reverse = replace(problem, placement=Placement.activations_inside(4, 2, 2))
    assert scope(reverse) == "passing activations inside islands of 2 ranks, weights between"
    other = Placement.of_ops(Passing.MIXED, 4, np.array([[0, 1], [3, 2]]))
    found = scope(replace(problem, placement=other))
    assert found.startswith("the same placement, passing activations and weights")


@pytest.mark.parametrize("name", ["activations-inside:2", "weights-inside:2"])
def test_parts_have_the_numbers_of_their_own_microbatches(name: str) -> None:
    each = [StageProfile(1.0 + j, 2.0 + j, 1.0, 1.0 + j, 0.5) for j in range(6)]
    profile = Profile((StageProfile.of(each),) * 4, 4)
    schedule = build_family(name, profile, 6)
    assert verify_schedule(dump_schedule(schedule)) == []
    for part in parts_of(schedule.problem):
        own = [each[j] for j in part.microbatches]
        assert list(part.problem.profile.stages[0].each) == own
