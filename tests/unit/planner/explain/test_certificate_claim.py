"""What a certificate's file says of the schedule's own bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom import Placement, Problem, Profile, Schedule, StageProfile, verify
from pipeloom import solve as optimize
from pipeloom.planner import certificate

PROFILE = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 2, 2, t_comm=0.1)


def claiming(times: float) -> Schedule:
    """The optimum, whose report claims so many times the bound that is proven."""
    schedule = optimize(Problem.linear(PROFILE, 3, 2.0), time_limit=5.0)
    report = schedule.known_report
    return replace(schedule, report=replace(report, lower_bound=times * report.known_bound))


def test_a_file_that_proves_less_says_what_is_claimed() -> None:
    proven = certificate(claiming(1.0))
    assert "claimed" not in proven
    schedule = claiming(1.1)
    less = certificate(schedule)
    assert less["claimed"] == schedule.known_report.lower_bound
    assert less["lower_bound"] == pytest.approx(proven["lower_bound"])


def test_a_bound_of_several_stages_has_the_best_argument_below_it() -> None:
    placement = Placement.v(2)
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 4, 2, t_comm=0.1)
    schedule = optimize(Problem(profile, 4, placement, (3.0,) * 2), work_limit=1.0)
    found = certificate(schedule)
    assert found["argument"] == {"kind": "work", "rank": 0}
    assert found["lower_bound"] == pytest.approx(24.0)
    assert found["claimed"] == schedule.known_report.lower_bound


def test_such_a_file_is_checked() -> None:
    """What is claimed has no say in what is proven."""
    given = claiming(1.0)
    document = certificate(given) | {"claimed": 1e6}
    assert verify(given, certificate=document).violations == []
