"""The frontier benchmark: its instances, when a recorded cell stands, and its targets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import frontier
from benchmarks.frontier.cell import measure
from benchmarks.frontier.instances import SETS, Instance
from benchmarks.frontier.picture import picture
from benchmarks.frontier.results import settings, stands
from benchmarks.frontier.table import widest
from benchmarks.frontier.targets import checks, summarize
from benchmarks.frontier.unequal import KINDS, unequal
from benchmarks.recording import environment
from pipeloom.ir.model.problem import Objective
from pipeloom.solver.bounds.feasibility import check_feasible


def cell(**changes: Any) -> dict[str, Any]:
    """A cell of 8 ranks that met its bound."""
    return {
        "row": "6.2B-24",
        "share": 1.0,
        "published": 0.1323,
        "ranks": 8,
        "microbatches": 24,
        "bubble": 0.1323,
        "bound_bubble": 0.1323,
        "bound_name": "head-tail",
        "cost": 2187.5,
        "gap": 0.0,
        "status": "optimal",
        "seconds": 1.0,
        "cpu_seconds": 1.0,
        "peak_rss": 1e8,
        "violations": 0,
    } | changes


def met(name: str, *cells: dict[str, Any]) -> list[bool]:
    return [done for _, done in checks(name, {f"{i}:x": each for i, each in enumerate(cells)})]


def test_the_sets_are_as_large_as_the_targets_say() -> None:
    sizes = {name: len(make()) for name, make in SETS.items()}
    assert (sizes["table5"], sizes["below"], sizes["unequal"]) == (72, 48, 200)
    assert (sizes["scale"], sizes["odd"]) == (6, 40)


def test_the_small_set_has_both_objectives_and_limits_below_the_ranks_for_each_backend() -> None:
    for solver in ("cp-sat", "milp"):
        instances = [i for i in SETS["small"]() if i.solver == solver]
        assert len(instances) >= 40
        assert all(i.problem.ranks <= 4 and i.problem.microbatches <= 8 for i in instances)
        assert {i.problem.objective for i in instances} == set(Objective)
        assert sum(i.share < 1 for i in instances) >= 10


def test_the_unequal_set_has_all_sizes_and_limits() -> None:
    problems = [i.problem for i in SETS["unequal"]()]
    assert {p.ranks for p in problems} == set(range(2, 17))
    assert min(p.microbatches for p in problems) == 4
    assert max(p.microbatches for p in problems) > 90
    assert {i.row for i in SETS["unequal"]()} == set(KINDS)
    assert len({round(i.share, 2) for i in SETS["odd"]()}) >= 8


@pytest.mark.parametrize("name", SETS)
def test_every_instance_is_feasible_and_has_a_name_of_its_own(name: str) -> None:
    instances = SETS[name]()
    for instance in instances:
        check_feasible(instance.problem)
    assert len({i.name for i in instances}) == len(instances)


def test_the_published_figures_stand_at_their_limits() -> None:
    known = {i.name: i.published for i in SETS["table5"]()}
    assert known["6.2B-24@2"] == 0.0029
    assert known["1.5B-24@1.5"] == 0.0719
    assert known["6.2B-64@1"] == 0.0554
    assert known["6.2B-64@1.5"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_instance(kind: str) -> None:
    assert unequal(kind, 3) == unequal(kind, 3) != unequal(kind, 4)
    problem = unequal(kind, 3, most=(4, 8))
    assert problem.ranks <= 4
    assert problem.microbatches <= 8


def test_a_cell_is_verified_and_at_or_above_its_bound() -> None:
    problem = unequal("times", 0, Objective.MAKESPAN, most=(2, 4))
    found = measure(problem, "auto", 5.0, 0)
    assert found["violations"] == 0
    assert found["status"] == "optimal"
    assert found["bubble"] >= found["bound_bubble"] - 1e-9


def test_a_recorded_cell_stands_for_the_same_planner_and_settings_only() -> None:
    instance = Instance("a", "a", unequal("times", 0), 5.0)
    wanted = settings(instance, None, 0)
    recorded = cell(settings=wanted, environment=environment())
    assert stands(recorded, wanted)
    assert not stands(recorded, settings(instance, None, 1))
    assert not stands(recorded, settings(instance, 7.0, 0))
    assert not stands(recorded, settings(replace(instance, problem=unequal("times", 1)), None, 0))
    assert not stands(recorded | {"environment": {"cpu": "another"}}, wanted)
    assert not stands(None, wanted)


def test_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run_cell(asked: tuple[str, Instance, dict[str, Any]]) -> dict[str, Any]:
        _, instance, wanted = asked
        ran.append(instance.name)
        return cell(settings=wanted, environment=environment(), row=instance.row)

    monkeypatch.setattr(frontier, "HERE", tmp_path)
    monkeypatch.setattr(frontier, "run_cell", run_cell)
    words = ["--set", "table5", "--row", "6.2B-24", "--workers", "1"]
    assert frontier.main([*words, "--every", "2"]) == 0
    assert ran == ["6.2B-24@1", "6.2B-24@1.5", "6.2B-24@2"]
    assert frontier.main(words) == 0
    assert ran[3:] == ["6.2B-24@1.25", "6.2B-24@1.75", "6.2B-24@2.5"]


def test_targets_are_met_or_missed() -> None:
    open_cell = cell(status="feasible", gap=0.03)
    assert met("table5", *[cell()] * 72) == [True, True, True]
    assert met("table5", *[cell()] * 60, *[open_cell] * 12) == [False, False, True]
    assert met("table5", *[cell(seconds=12.0)] * 72) == [True, True, False]
    assert met("below", cell(), open_cell, cell()) == [True, True]
    assert met("below", open_cell, open_cell, cell(gap=0.06)) == [False, False]
    assert met("unequal", cell(), open_cell) == [False, False]
    assert met("scale", cell(peak_rss=5e9)) == [True, False, True]


def test_backends_that_disagree_are_found() -> None:
    cells = {"a:cp-sat": cell(cost=10.0), "a:milp": cell(cost=10.1)}
    assert [done for _, done in checks("small", cells)] == [True, False, True]


def test_a_failed_or_invalid_cell_misses() -> None:
    found = checks("below", {"a": cell(), "b": {"error": "timed out"}, "c": cell(violations=2)})
    assert ("b: timed out", False) in found
    assert ("c: INVALID", False) in found


def test_the_widest_gaps_come_first_and_closed_cells_not_at_all() -> None:
    gaps = {"a": 0.01, "b": 0.03, "d": 0.02}
    found = {name: cell(gap=gap, status="feasible") for name, gap in gaps.items()} | {"c": cell()}
    assert re.findall(r"^\| ([a-d]) ", widest(found, 2), re.MULTILINE) == ["b", "d"]


def test_the_summary_counts_published_figures() -> None:
    words = summarize({"a": cell(), "b": cell(bubble=0.12), "c": cell(bubble=0.14)})
    assert "of 3 published figures 1 improved, 1 met, 1 missed" in words


def test_the_picture_has_the_heuristic_once_in_its_legend() -> None:
    cells = [cell(), cell(share=2.0, bubble=0.0012, published=0.0029)]
    svg = picture("6.2B-24", cells)
    ElementTree.fromstring(svg)
    assert len(re.findall(r">published heuristic<", svg)) == 1
    assert svg.count("<title>published heuristic") == 2
