"""The choice among placements: what is tried, what is left out, and what weights leave for activations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from pipeloom.ir.problem import Placement, Problem
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.families import build_family
from pipeloom.solver.placements import best_placement, cost_of, placements, room
from pipeloom.solver.solve import Solving, optimize

STAGE = StageProfile(2.0, 2.0, 1.0, 1.0, 0.5, weight_bytes=2.0, grad_bytes=1.0)
PROFILE = Profile((STAGE,) * 2, 2, 0.1)


WORK = 1.0


def search(problem: Problem, _: str = "") -> Solving:
    return Solving.of(problem, solver="heuristic", work_limit=WORK)


def test_a_profile_of_one_stage_a_rank_is_cut() -> None:
    names = {placement.name: placed.num_stages for placed, placement in placements(PROFILE)}
    assert names == {
        "linear": 2, "interleaved:2": 4, "v": 4, "interleaved:3": 6, "interleaved:4": 8, "wave:2": 8,
    }  # fmt: skip


def test_stages_are_taken_as_they_are_where_there_are_several_a_rank() -> None:
    found = list(placements(PROFILE.split(2)))
    assert [(placed.num_stages, placement.name) for placed, placement in found] == [
        (4, "interleaved:2"),
        (4, "v"),
    ]
    assert list(placements(replace(PROFILE, stages=(STAGE,) * 3))) == []


def test_the_best_of_all_is_no_worse_than_each_of_them() -> None:
    chosen = best_placement(PROFILE, 4, search, memory_limit=2.0)
    assert chosen.best is not None
    best = cost_of(chosen.best)
    assert chosen.bound is not None
    assert chosen.bound <= best
    for placed, placement in placements(PROFILE):
        problem = Problem(placed, 4, placement, (2.0, 2.0))
        alone = optimize(problem, solver="heuristic", work_limit=WORK)
        assert best <= cost_of(alone) * (1 + 1e-6)
        assert chosen.bound <= max(lower_bound(problem).value, best)
    for tried in chosen.tried:
        assert tried.bound is not None
        if tried.schedule is None:  # left out: it cannot be better
            assert tried.bound >= best * (1 - 1e-6)


def test_activations_have_what_weights_leave_on_the_device() -> None:
    small = replace(PROFILE, device_memory=(5.0, 4.0))
    limit = room(small, Placement.linear(2), (1.5, math.inf))
    assert limit == (1.5, 1.0)
    chosen = best_placement(replace(PROFILE, device_memory=(3.5, 3.5)), 4, search)
    assert chosen.best is None
    assert chosen.bound is None
    assert all("too small for rank" in (tried.why_not or "") for tried in chosen.tried)


def test_an_interrupt_leaves_the_first_answer() -> None:
    chosen = best_placement(PROFILE, 4, search, should_stop=lambda: True)
    assert chosen.best is not None
    assert sum(tried.schedule is not None for tried in chosen.tried) == 1


class Improving:
    """A search that has no bound and gets better by ``slope`` a second, on a clock that it moves."""

    def __init__(self, problem: Problem, name: str, clock: Clock) -> None:
        self._schedule = build_family("gpipe", PROFILE, 2)
        self._name, self._clock, self.done = name, clock, False
        self._cost, self._slope = RACE.get(name, (99.0, 0.0))

    def begin(self, _: float) -> Schedule:
        return self.run(1.0)

    def run(self, seconds: float) -> Schedule:
        self._clock.now += seconds
        self._clock.spent[self._name] = self._clock.spent.get(self._name, 0.0) + seconds
        self._cost -= self._slope * seconds
        assert self._schedule.timing is not None
        end = (np.array([self._cost]),) * 2
        timing = replace(self._schedule.timing, start=(np.zeros(1),) * 2, end=end)
        return replace(self._schedule, timing=timing, report=None)


@dataclass
class Clock:
    now: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)


RACE = {"v": (60.0, 0.0), "linear": (70.0, 0.2), "wave:2": (80.0, 0.0)}
"""First costs, and how fast they fall."""


def test_within_seconds_all_begin_and_the_best_have_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six begin, 1 s each; 36 of the other 90 s in three rounds of 12 s, for six, three and two."""
    clock = Clock()
    monkeypatch.setattr("pipeloom.solver.placements.monotonic", lambda: clock.now)
    chosen = best_placement(
        PROFILE, 2, lambda problem, name: Improving(problem, name, clock), seconds=96.0
    )
    assert [tried.name for tried in chosen.tried][:2] == ["v", "linear"]
    assert clock.spent["v"] == pytest.approx(1 + 12 / 6 + 12 / 3 + 12 / 2 + 54)
    assert clock.spent["linear"] == pytest.approx(1 + 12 / 6 + 12 / 3 + 12 / 2)
    assert clock.spent["wave:2"] == pytest.approx(1 + 12 / 6 + 12 / 3)
    assert clock.spent["interleaved:3"] == pytest.approx(1 + 12 / 6)
    assert clock.now == pytest.approx(96.0)


@pytest.mark.parametrize("limit", [1.0, 3.0])
def test_the_schedule_keeps_the_limit(limit: float) -> None:
    chosen = best_placement(PROFILE, 3, search, memory_limit=limit)
    assert chosen.best is not None
    assert chosen.best.timing is not None
    assert max(chosen.best.timing.peak_memory) <= limit * (1 + 1e-9)
