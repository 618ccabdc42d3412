"""The frontier benchmark: its instances, when a recorded cell stands, and its targets."""

from __future__ import annotations

import pytest

from benchmarks import Case
from benchmarks.gaps.frontier import SETS, Instance, measure
from benchmarks.gaps.unequal import unequal
from pipeloom.ir.model.problem import Objective
from pipeloom.solver.bounds.feasibility import check_feasible


def test_the_sets_are_as_large_as_the_targets_say() -> None:
    sizes = {name: len(make()) for name, make in SETS.items()}
    assert (sizes["table5"], sizes["below"], sizes["unequal"]) == (72, 48, 200)
    assert (sizes["scale"], sizes["odd"]) == (6, 40)


@pytest.mark.parametrize("name", SETS)
def test_every_instance_is_feasible_and_has_a_name_of_its_own(name: str) -> None:
    instances = SETS[name]()
    for instance in instances:
        check_feasible(instance.problem)
    assert len({i.name for i in instances}) == len(instances)


def test_a_cell_is_verified_and_at_or_above_its_bound() -> None:
    problem = unequal("times", 0, Objective.MAKESPAN, most=(2, 4))
    instance = Instance("x", "times", problem, 5.0)
    found = measure(Case("frontier odd", "x", {"instance": instance}))
    assert found["violations"] == 0
    assert found["status"] == "optimal"
    assert found["bubble"] >= found["bound_bubble"] - 1e-9
