"""The placement that ``optimize``, ``compare`` and ``sweep`` choose where none is given."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from pipeloom import Evaluation, InfeasibleError, Profile, Schedule, StageProfile, sweep
from pipeloom.planner.placement.choose import assumed_cut
from pipeloom.planner.sweep import Sweep
from pipeloom.planner.sweep import _better as better
from tests.support.command_line import layers_document
from tests.support.inner import DataParallel, Link, Status, lower_bound

PROFILE = Profile((StageProfile(2.0, 3.0, 1.5, 1.0, 0.5),) * 4, 4, t_comm=0.1)
QUICK: dict[str, Any] = {"work_limit": 0.1, "solver": "heuristic"}
LINEAR = 47.1
"""The least period of 6 microbatches with one stage a rank: one of them there and back."""


def placement_of(schedule: Schedule) -> str:
    return schedule.problem.placement.name


def test_a_better_placement_than_linear_is_found_and_its_cut_is_noted() -> None:
    answer = pipeloom.optimize(PROFILE, 6, **QUICK)
    linear = pipeloom.optimize(PROFILE, 6, **QUICK, placement="linear")
    assert linear.cost == pytest.approx(LINEAR)
    assert answer.cost < 0.97 * linear.cost
    assert placement_of(answer.schedule) != "linear"
    pieces = answer.schedule.problem.profile.num_stages // 4
    assumed = answer.to_dict()["choice"]["assumed"]
    assert assumed.startswith(f"each stage can be cut into {pieces} equal pieces; ")
    shown = str(answer).splitlines()
    assert f"assumed {assumed}" in " ".join(shown[4].split())
    assert (
        "; optimize --placement linear, or max_stages in the profile, keeps stages as they are"
        in assumed
    )


def test_families_of_more_stages_note_their_cut() -> None:
    told: list[object] = []
    schedule = pipeloom.build("zb-v", PROFILE, 6, progress=told.append)
    assumed = assumed_cut(PROFILE, schedule)
    assert str(told[0]).endswith(f": assumed: {assumed}")
    named = pipeloom.optimize(PROFILE, 6, **QUICK, placement="v")
    assert named.to_dict()["choice"] == {"assumed": assumed}
    system = pipeloom.optimize(PROFILE, 8, **QUICK, placement="interleaved:2", for_="megatron")
    assert system.facts["choice"] == {"assumed": assumed}
    rows = {row.name: row for row in pipeloom.compare(PROFILE, 6, no_optimizer=True).rows}
    assert (rows["zb-v"].assumed, rows["zb-h1"].assumed) == (assumed, None)


def test_bound_and_status_are_those_of_the_chosen_placement() -> None:
    answer = pipeloom.optimize(PROFILE, 6, time_limit=1)
    choice = answer.facts["choice"]
    (chosen,) = [one for one in answer.candidates if one.reason is None]
    assert chosen.name == placement_of(answer.schedule)
    assert answer.lower_bound == answer.schedule.known_report.lower_bound
    assert answer.status is answer.schedule.known_report.status
    bounds = [one["lower_bound"] for one in choice["placements"] if one["lower_bound"]]
    assert choice["lower_bound"] == pytest.approx(answer.least_bound)
    assert answer.least_bound == min(bounds) <= answer.lower_bound
    searched = [one for one in choice["placements"] if one["cost"] is not None]
    assert all(one["seconds"] >= 0 and 0 < one["bubble_rate"] < 1 for one in searched)
    assert "searched" in str(answer)
    assert "no placement costs less than" in str(answer)


def test_where_passing_is_chosen_the_placement_of_activations_is_too() -> None:
    auto: dict[str, Any] = {"passing": "auto", "memory_limit": 3.0, **QUICK}
    plain = pipeloom.optimize(PROFILE, 6, memory_limit=3.0, **QUICK)
    answer = pipeloom.optimize(PROFILE, 6, **auto)
    assert placement_of(answer.schedule) != "linear"
    assert answer.cost < 1.05 * plain.cost
    assert answer.facts["choice"]["assumed"] in str(answer)
    assert f"optimized, {placement_of(answer.schedule)}" in str(answer)
    linear = pipeloom.optimize(PROFILE, 6, **auto, placement="linear")
    assert placement_of(linear.schedule) == "linear"
    assert answer.cost < 0.8 * linear.cost


def test_max_stages_ends_the_cut() -> None:
    answer = pipeloom.optimize(replace(PROFILE, max_stages=4), 6, **QUICK)
    assert placement_of(answer.schedule) == "linear"
    assert answer.cost == pytest.approx(LINEAR)
    assert "assumed" not in answer.facts["choice"]
    cut = pipeloom.optimize(replace(PROFILE, max_stages=8), 6, **QUICK)
    assert cut.schedule.problem.profile.num_stages == 8
    assert "2 equal pieces (max_stages is 8)" in cut.facts["choice"]["assumed"]


@pytest.mark.parametrize("placement", ["linear", "v", "interleaved:2", [3, 2, 1, 0]])
def test_a_start_keeps_its_placement(placement: str | list[int]) -> None:
    start = pipeloom.optimize(PROFILE, 6, **QUICK, placement=placement)
    again = pipeloom.optimize(PROFILE, 6, **QUICK, start=start.schedule)
    assert again.schedule.problem.placement == start.schedule.problem.placement
    assert again.cost <= start.cost * (1 + 1e-9)
    assert [one.name for one in again.candidates] == [placement_of(start.schedule)]
    assert "other_placement" not in again.facts


def test_a_given_placement_has_a_line_on_what_others_may_save() -> None:
    answer = pipeloom.optimize(PROFILE, 6, **QUICK, placement="linear")
    other = answer.facts["other_placement"]
    assert other["placement"] in {"v", "wave:2", "interleaved:2", "interleaved:3", "interleaved:4"}
    assert other["lower_bound"] < answer.cost
    assert answer.words.startswith("another placement may cost up to 17.20 % less: ")
    assert other["placement"] in str(answer)
    alone = pipeloom.optimize(replace(PROFILE, max_stages=4), 6, **QUICK, placement="linear")
    assert "other_placement" not in alone.facts
    assert "another placement" not in str(alone)


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("system", [None, "torchtitan", "megatron"])
def test_cuts_and_systems_have_the_line_as_well(system: str | None, layers: bool) -> None:
    profile = layers_document() if layers else PROFILE
    given: dict[str, Any] = {"for_": system, **QUICK}
    answer = pipeloom.optimize(profile, 8, **given, placement="linear")
    other = answer.facts["other_placement"]
    assert other["placement"].startswith("interleaved")
    assert f" less: {other['placement']}, by its bound of" in str(answer)
    best = pipeloom.optimize(profile, 8, **given)
    assert other["lower_bound"] <= best.cost <= answer.cost
    assert other["lower_bound"] < answer.cost
    assert "other_placement" not in best.facts


def test_the_line_is_on_other_placements() -> None:
    """The given one has the least bound in closed form, and another one that its search proved."""
    two = replace(PROFILE, max_stages=8)
    for placement in ("v", "interleaved:2"):
        answer = pipeloom.optimize(two, 6, **QUICK, placement=placement)
        assert answer.facts.get("other_placement", {}).get("placement") != placement


def test_the_smallest_limit_of_all_placements_is_named() -> None:
    with pytest.raises(InfeasibleError) as caught:
        pipeloom.optimize(PROFILE, 6, **QUICK, memory_limit=0.3)
    (line,) = caught.value.lines
    assert "the smallest feasible limit is 1 (placement " in line
    limit = caught.value.smallest
    assert limit is not None
    assert pipeloom.optimize(PROFILE, 6, **QUICK, memory_limit=limit).cost > 0


def test_compare_says_what_was_assumed_and_whom_its_bound_covers() -> None:
    found = pipeloom.compare(PROFILE, 6, **QUICK)
    assumed = found.to_dict()["results"][-1]["assumed"]
    words = " ".join(str(found).split())
    assert f"assumed: {assumed}" in words
    assert "not covered by this bound, as they have another placement or passing: " in words
    whole = pipeloom.compare(replace(PROFILE, max_stages=4), 6, **QUICK)
    assert whole.to_dict()["results"][-1]["assumed"] is None
    assert "assumed" not in str(whole)


def test_with_replicas_all_speak_of_ops_without_averaging() -> None:
    stage = replace(PROFILE.stages[0], grad_bytes=1e9)
    replicas = DataParallel(2, Link(0.02, 25.0))
    profile = replace(PROFILE, stages=(stage,) * 4, max_stages=4, data_parallel=replicas)
    answer = pipeloom.optimize(profile, 6, **QUICK)
    report = answer.schedule.known_report
    assert answer.cost > answer.lower_bound * 1.1
    assert answer.status is report.status is Status.OPTIMAL
    assert answer.gap == answer.to_dict()["gap"] < 1e-9
    table = pipeloom.compare(profile, 6, **QUICK)
    assert table.rows[-1].status == "optimal"
    assert "linear, optimal among all schedules" in str(table)
    assert sweep(profile, 6, [8.0], **QUICK).rows[0].status == "optimal"


def test_compare_and_sweep_choose_the_placement() -> None:
    row = pipeloom.compare(PROFILE, 6, **QUICK).rows[-1]
    assert row.name == "optimize"
    assert row.cost < 0.97 * LINEAR
    assert row.to_dict()["placement"] == placement_of(row.schedule) != "linear"
    swept = sweep(PROFILE, 6, [2.0, 6.0], **QUICK)
    last = swept.to_dict()["results"][-1]
    pieces = swept.rows[-1].profile.num_stages // 4
    assert last["assumed"].startswith(f"each stage can be cut into {pieces} equal pieces; ")
    assert f"6: {last['assumed']}" in str(swept)
    assert last["placement"] != "linear"
    assert last["period"] < 0.97 * LINEAR
    assert last["least_bound"] <= last["lower_bound"]
    given = sweep(PROFILE, 6, [2.0, 6.0], **QUICK, placement="linear").to_dict()["results"]
    assert [one["placement"] for one in given] == ["linear"] * 2
    assert given[-1]["period"] == pytest.approx(LINEAR)


def test_a_kept_answer_says_what_was_barely_searched(tmp_path: Path) -> None:
    given: dict[str, Any] = {"time_limit": 0.5, "cache": str(tmp_path)}
    first, again = (pipeloom.optimize(PROFILE, 6, **given) for _ in range(2))
    left = [one.name for one in first.candidates if "searched" in (one.reason or "")]
    assert left
    assert again.candidates == first.candidates
    assert str(again) == str(first)


@pytest.mark.parametrize(
    "other", [{"copies": 1}, {"for_": "torchtitan"}, {"slow": "1:1.5"}, {"placement": "linear"}]
)
def test_other_placements_to_choose_from_are_another_question(
    other: dict[str, Any], tmp_path: Path
) -> None:
    """What is left out for another placement's sake is no answer where that is not tried."""
    said: list[str] = []

    def asked(**given: Any) -> bool:
        said.clear()
        given |= {"cache": str(tmp_path), "progress": lambda event: said.append(str(event))}
        pipeloom.optimize(PROFILE, 6, **QUICK, **given)
        return any("taken from the cache" in line for line in said)

    assert [asked(), asked(), asked(**other), asked(**other)] == [False, True, False, True]


def optimized(placement: str, limit: float) -> Evaluation:
    answer = pipeloom.optimize(PROFILE, 6, **QUICK, placement=placement, memory_limit=limit)
    return Evaluation("optimize", answer.schedule, candidates=answer.candidates)


def test_a_cheaper_schedule_of_a_smaller_limit_has_its_own_bound_under_the_next() -> None:
    v, linear = optimized("v", 5.0), optimized("linear", 8.0)
    found = better(linear, v, 8.0)
    assert placement_of(found.schedule) == "v"
    assert found.cost == v.cost
    assert found.schedule.problem.memory_limit == (8.0,) * 4
    report = found.schedule.known_report
    bound = lower_bound(found.schedule.problem)
    assert report.lower_bound == bound.value < linear.schedule.known_report.known_bound
    assert report.status is Status.FEASIBLE
    assert pipeloom.verify(found.schedule).ok
    assert better(v, linear, 8.0) is v
    assert better(linear, None, 8.0) is linear


def test_no_point_of_the_picture_is_below_its_bound() -> None:
    swept = sweep(PROFILE, 6, [1.0, 3.0, 5.0, 8.0, math.inf], **QUICK)
    assert not_in_the_grey(swept.picture()) == 5
    assert drawn_lines(swept) >= {"v", "wave:2"}


def test_recomputation_counts_as_idle_in_the_picture() -> None:
    """Schedules under small limits recompute, and have smaller bubbles by their own work."""
    stage = replace(PROFILE.stages[0], t_r=2.0, m_r=0.1)
    profile = replace(PROFILE, stages=(stage,) * 4, max_stages=4)
    swept = sweep(profile, 6, [2.0, 3.0, 8.0], **QUICK)
    assert [row.work_ratio > 1 for row in swept.rows] == [True, True, False]
    assert swept.rows[1].bubble_rate < swept.rows[2].bubble_rate
    picture = swept.picture()
    assert not_in_the_grey(picture) == 3
    assert "bubble rate of the period; recomputation counts as idle" in picture


def not_in_the_grey(picture: str) -> int:
    """How many points there are. Each is above its bound, or filled and on it, and no higher than
    those of smaller limits."""
    circles = re.findall(r'<circle [^>]*cy="([\d.]+)" r="5" fill="([^"]*)"', picture)
    (steps,) = re.findall(r'<path d="([^"]*)" stroke="#8a97a6" [^>]*stroke-dasharray', picture)[:1]
    bounds = [float(y) for y in re.findall(r"V([\d.]+)", steps)]
    heights = [float(y) for y, _ in circles]
    assert heights == sorted(heights)
    for height, bound, (_, fill) in zip(heights, bounds, circles, strict=True):
        assert height <= bound + 0.02
        assert fill == "#fff" or height >= bound - 0.02
    return len(circles)


def drawn_lines(swept: Sweep) -> set[str]:
    """The placements in the picture's legend."""
    names = {one.name for limit in swept.limits for one in limit.row.candidates}
    return {name for name in names if f">{name}</text>" in swept.picture()}


def test_what_a_sweep_takes_over_is_compared_with_averaging_counted() -> None:
    """The V has the shorter period, interleaved stages the shorter iteration."""
    link = Link(0.02, 25.0)
    stage = StageProfile(10.0, 10.0, 8.0, 1.0, 0.5, grad_bytes=2e9)
    profile = Profile((stage,) * 4, 4, t_comm=0.05, data_parallel=DataParallel(2, link))

    def evaluated(placement: str, limit: float) -> Evaluation:
        given = {"placement": placement, "memory_limit": limit}
        return Evaluation("", pipeloom.optimize(profile, 8, **given, **QUICK).schedule)

    rows = [evaluated(name, 8.0) for name in ("v", "interleaved:2", "interleaved:4")]
    for row in rows:
        for known in rows:
            least = min(row.iteration_time, known.iteration_time)
            assert better(row, known, 8.0).iteration_time == pytest.approx(least)
    costs = sorted(rows, key=lambda row: row.cost)
    assert costs != sorted(rows, key=lambda row: row.iteration_time)
