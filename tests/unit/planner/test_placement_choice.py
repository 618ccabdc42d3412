"""The placement that ``optimize``, ``compare`` and ``sweep`` choose if none is given."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from pipeloom import InfeasibleError, Profile, StageProfile, sweep
from pipeloom.ir import DataParallel, Link, Status
from pipeloom.planner import Result
from pipeloom.solver import lower_bound

PROFILE = Profile((StageProfile(2.0, 3.0, 1.5, 1.0, 0.5),) * 4, 4, t_comm=0.1)
WHOLE = replace(PROFILE, max_stages=4)
QUICK: dict[str, Any] = {"work_limit": 0.1, "solver": "heuristic"}
LINEAR = 47.1
"""The least period of 6 microbatches with one stage per rank, one microbatch at a time."""


@cache
def chosen(profile: Profile = PROFILE, **given: Any) -> Result:
    return pipeloom.optimize(profile, 6, **QUICK | given)


def placement_of(found: Any) -> str:
    return str(found.schedule.problem.placement.name)


def test_a_better_placement_than_linear_is_found_and_its_cut_is_noted() -> None:
    answer, linear = chosen(), chosen(placement="linear")
    assert linear.cost == pytest.approx(LINEAR)
    assert answer.cost < 0.97 * LINEAR
    pieces = answer.schedule.problem.profile.num_stages // 4
    assumed = answer.to_dict()["assumed"]
    assert assumed.startswith(f"each stage is cut into {pieces} equal pieces; ")
    assert f"assumed {assumed}" in " ".join(str(answer).split())
    assert "--placement linear keeps stages whole" in assumed
    whole, cut = chosen(WHOLE), chosen(replace(PROFILE, max_stages=8))
    assert (placement_of(whole), whole.cost) == ("linear", pytest.approx(LINEAR))
    assert whole.assumed is None
    assert cut.schedule.problem.profile.num_stages == 8
    assert "2 equal pieces (max_stages is 8)" in str(cut.assumed)


def test_bound_and_status_are_those_of_the_chosen_placement() -> None:
    answer = chosen()
    shown, report = answer.to_dict(), answer.schedule.known_report
    (own,) = [one for one in answer.candidates if one.reason is None]
    assert own.name == placement_of(answer)
    assert (answer.lower_bound, answer.status) == (report.lower_bound, report.status)
    bounds = [one["lower_bound"] for one in shown["candidates"] if one["lower_bound"]]
    assert shown["least_bound"] == answer.least_bound
    assert answer.least_bound == min(bounds) <= answer.lower_bound


@pytest.mark.parametrize("placement", ["v", (3, 2, 1, 0)])
def test_a_start_keeps_its_placement(placement: Any) -> None:
    given = [*placement] if isinstance(placement, tuple) else placement
    start = pipeloom.optimize(PROFILE, 6, **QUICK, placement=given)
    again = pipeloom.optimize(PROFILE, 6, **QUICK, start=start.schedule)
    assert again.schedule.problem.placement == start.schedule.problem.placement
    assert again.cost <= start.cost * (1 + 1e-9)
    assert [one.name for one in again.candidates] == [placement_of(start)]


def test_the_smallest_limit_of_all_placements_is_named() -> None:
    with pytest.raises(InfeasibleError) as caught:
        chosen(memory_limit=0.3)
    (line,) = caught.value.lines
    assert "the smallest feasible limit is 1 (placement " in line
    assert chosen(memory_limit=caught.value.smallest).cost > 0


def test_with_replicas_all_speak_of_ops_without_averaging() -> None:
    stage, replicas = replace(PROFILE.stages[0], grad_bytes=1e9), DataParallel(2, Link(0.02, 25.0))
    profile = replace(WHOLE, stages=(stage,) * 4, data_parallel=replicas)
    answer = chosen(profile)
    assert answer.cost > answer.lower_bound * 1.1
    assert answer.status is answer.schedule.known_report.status is Status.OPTIMAL
    assert answer.gap == answer.to_dict()["gap"] < 1e-9
    assert pipeloom.compare(profile, 6, **QUICK).rows[-1].status == "optimal"
    assert sweep(profile, 6, [8.0], **QUICK).rows[0].status == "optimal"


@pytest.mark.parametrize("other", [{"copies": 1}, {"placement": "linear"}])
def test_other_placements_to_choose_from_are_another_question(
    other: dict[str, Any], tmp_path: Path
) -> None:
    """Placements that were skipped because of another placement cannot be answers without it."""

    def asked(**given: Any) -> tuple[bool, Result]:
        said: list[object] = []
        options = QUICK | given | {"cache": str(tmp_path), "progress": said.append}
        answer = pipeloom.optimize(PROFILE, 6, **options)
        return any("taken from the cache" in str(event) for event in said), answer

    (first, answer), (second, again), *others = asked(), asked(), asked(**other), asked(**other)
    assert [first, second, *(known for known, _ in others)] == [False, True, False, True]
    assert again.candidates == answer.candidates
    assert str(again) == str(answer)


LIMITS = [1.0, 3.0, math.inf]


def test_a_sweep_takes_over_what_costs_less_under_a_smaller_limit() -> None:
    """Each row is valid under its limit and has its own bound. If averaging counts, it counts in
    comparisons too."""
    averaged = replace(PROFILE.stages[0], grad_bytes=2e9)
    for stage in (PROFILE.stages[0], averaged):
        replicas = DataParallel(2, Link(0.02, 25.0)) if stage is averaged else None
        profile = replace(PROFILE, stages=(stage,) * 4, data_parallel=replicas)
        swept = sweep(profile, 6, LIMITS, **QUICK)
        rows = [(swept.limits[row.name], row) for row in swept.built]
        times = [row.cost for _, row in rows]
        assert times == sorted(times, reverse=True)
        for limit, row in rows:
            problem, report = row.schedule.problem, row.schedule.known_report
            assert max(problem.memory_limit) <= limit
            assert pipeloom.verify(row.schedule).ok
            assert lower_bound(problem).value <= report.known_bound * (1 + 1e-9)
            assert (report.status is Status.OPTIMAL) == (
                report.known_bound >= row.objective_cost * (1 - 1e-6)
            )
        shown = swept.to_dict()["results"][-1]
        assert shown["least_bound"] <= shown["lower_bound"] <= shown["period"]
        assert f"{rows[-1][1].assumed}" in str(swept)
