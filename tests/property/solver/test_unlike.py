"""Microbatches that differ: optima of tiny instances, verified schedules, valid bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir import (
    Placement,
    Problem,
    Profile,
    StageProfile,
    dump_layers,
    dump_profile,
    dump_schedule,
    parse_layers,
    parse_profile,
    verify_schedule,
)
from pipeloom.solver import lower_bounds, solve
from tests.property.small_exact.instances import problem_of
from tests.support.command_line import layers_document, profile_document
from tests.support.random_schedules import unlike


def test_the_largest_of_each_stage_need_not_fit_at_once() -> None:
    """Each microbatch holds at most 3 on both stages; the sum of each stage's maximum is 4."""
    rows = [(2.0, 1.0), (1.0, 2.0)]
    stages = tuple(StageProfile.of([StageProfile(1, 1, 1, m_b) for m_b in row]) for row in rows)
    problem = Problem(Profile(stages, 1), 2, Placement.of_stages((0, 0)), (3.0,))
    assert solve(problem, solver="heuristic", work_limit=0.1).known_timing.period == 12.0


@pytest.mark.parametrize("kind", ["v", "several stages a rank", "weights"])
@pytest.mark.parametrize("seed", range(3))
def test_random_instances(kind: str, seed: int) -> None:
    """Solved schedules are verified, reproducible and not below a bound, with room for the largest
    microbatch."""
    alike = problem_of(kind, seed)
    profile, limit = unlike(alike.profile, 8, seed), [2.0 * limit for limit in alike.memory_limit]
    problem = replace(alike, profile=profile, microbatches=8, memory_limit=tuple(limit))
    found, again = (solve(problem, work_limit=0.5, seed=seed) for _ in range(2))
    assert verify_schedule(dump_schedule(found)) == []
    cost = found.known_timing.cost(problem.objective)
    assert max(bound.value for bound in lower_bounds(problem)) <= cost * (1 + 1e-9)
    assert [row.tolist() for row in again.order] == [row.tolist() for row in found.order]


def test_lists_that_are_constant_are_numbers() -> None:
    document = profile_document()
    lists = [{key: [value] * 5 for key, value in stage.items()} for stage in document["stages"]]
    listed = parse_profile(document | {"stages": lists}, "profile")
    assert (listed.microbatches, listed.unlike) == (5, False)
    assert replace(listed, microbatches=None) == parse_profile(document, "profile")
    assert parse_profile(dump_profile(listed), "again") == listed


def test_layers_are_summed_microbatch_by_microbatch() -> None:
    amounts, (layer, _) = np.arange(1.0, 13.0).reshape(4, 3), profile_document()["stages"]
    rows = [{"name": f"{n}", "t_f": row, "m_b": row} for n, row in enumerate(amounts.tolist())]
    profile = parse_layers(layers_document(layers=[layer | row for row in rows]), "profile")
    assert parse_layers(dump_layers(profile), "again") == profile
    first, second = profile.cut((0, 1)).stages
    assert [one.t_f for one in first.each] == pytest.approx(amounts[0])
    assert [one.m_b for one in second.each] == pytest.approx(amounts[1:].sum(axis=0))
    assert second.m_b == pytest.approx(amounts[1:].sum() / 3)
