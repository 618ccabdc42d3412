from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import TransferKind
from pipeloom.ir.model.transfers import journeys, owners
from pipeloom.solver.families import FAMILIES, build_family

EQUAL = StageProfile(t_f=1.0, t_b=1.0, t_w=1.0)


def profile(ranks: int, stage: StageProfile = EQUAL) -> Profile:
    return Profile((stage,) * ranks, ranks)


def test_routes_of_two_ranks_and_four_microbatches() -> None:
    schedule = build_family("weipipe-interleave", profile(2), 4)
    routes = {
        f"{kind.value} {stage}.{copy}": [schedule.transfers[i].source for i in journey]
        + [schedule.transfers[journey[-1]].target]
        for (kind, stage, copy), journey in journeys(schedule.transfers).items()
    }
    assert routes == {
        "weight 0.0": [0, 1, 0, 1],
        "weight 0.1": [0, 1, 0, 1],
        "gradient 0.0": [0, 1, 0, 1, 0],
        "weight 1.0": [1, 0, 1, 0, 1],
        "weight 1.1": [1, 0, 1, 0, 1],
        "gradient 1.0": [0, 1, 0, 1],
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1.25, 2, 3, 4.5])
def test_bubble_is_the_published_formula(ranks: int, rounds: float) -> None:
    count = int(ranks * rounds) + (rounds == 1.25 and ranks < 4)
    timing = build_family("weipipe-interleave", profile(ranks), count).known_timing
    assert timing.makespan == 3 * count + 3 * (ranks - 1)
    assert timing.bubble_rate(Objective.MAKESPAN) == pytest.approx(
        (ranks - 1) / (count + ranks - 1)
    )
    assert max(timing.peak_memory) == ranks


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (4, 3), (4, 4), (8, 5)])
@pytest.mark.parametrize("t_f", [1.0, 3.0])
def test_without_a_second_round_no_turn_holds_an_f_and_a_bw(
    ranks: int, count: int, t_f: float
) -> None:
    stage = replace(EQUAL, t_f=t_f)
    timing = build_family("weipipe-interleave", profile(ranks, stage), count).known_timing
    assert timing.makespan == ranks * (t_f + 2) + (count - 1) * max(t_f, 2)


def test_every_weight_sets_out_from_its_owner_and_every_gradient_ends_there() -> None:
    for ranks, count in ((1, 3), (2, 1), (3, 7), (4, 2), (5, 10)):
        schedule = build_family("weipipe-interleave", profile(ranks), count)
        assert owners(schedule) == tuple(range(ranks))
        for (kind, stage, _), journey in journeys(schedule.transfers).items():
            legs = [schedule.transfers[i] for i in journey]
            home = legs[0].source if kind is TransferKind.WEIGHT else legs[-1].target
            assert home == stage
            assert all(a.target == b.source for a, b in pairwise(legs))


def test_what_does_not_fit_is_refused_in_words() -> None:
    uneven = Profile((EQUAL,) * 3, 2)
    with pytest.raises(InputError, match="as many stages as ranks, not 3 stages on 2"):
        build_family("weipipe-interleave", uneven, 4)
    with pytest.raises(InfeasibleError, match="smallest limit for this family is 4"):
        build_family("weipipe-interleave", profile(4), 8, memory_limit=3)
    family = FAMILIES["weipipe-interleave"]
    problem = family.problem(profile(2), 4, None, Objective.PERIOD)
    reason = family.supports(replace(problem, placement=Placement.linear(2)))
    assert reason == "needs microbatch j on rank j mod 2, not the placement linear"


def test_one_ranks_file_says_that_nothing_travels() -> None:
    assert dump_schedule(build_family("weipipe-interleave", profile(1), 2))["transfers"] == []
    assert "transfers" not in dump_schedule(build_family("1f1b", profile(2), 2))
