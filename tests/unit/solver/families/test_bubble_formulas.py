"""The formulas beside what is built: equal at equal times, in the objective that each is about."""

from __future__ import annotations

import pytest

from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import FAMILIES, build_family
from pipeloom.solver.families.bubble_formulas import FORMULAS, Instance, formula_of


@pytest.mark.parametrize(("ranks", "count"), [(1, 3), (2, 4), (4, 8), (4, 20), (8, 24)])
@pytest.mark.parametrize("name", FORMULAS)
def test_equal_times_give_the_formula(name: str, ranks: int, count: int) -> None:
    if name == "wzb1" and ranks == 1:
        pytest.skip("wzb1 needs an even number of ranks")
    schedule = build_family(name, Profile((StageProfile(1.0, 1.0, 1.0),) * ranks, ranks), count)
    formula, profile = FORMULAS[name], schedule.problem.profile
    assert schedule.known_timing.bubble_rate(formula.objective) == pytest.approx(
        formula.rate(Instance.of(profile, count)), abs=1e-12
    )


def test_an_instance_has_the_times_of_a_whole_rank() -> None:
    stages = (StageProfile(1.0, 2.0, 3.0), StageProfile(3.0, 2.0, 1.0)) * 2
    assert Instance.of(Profile(stages, 2), 5) == Instance(2, 5, 4.0, 4.0, 4.0, chunks=2)


def test_formulas_are_of_families_and_a_parameter_does_not_matter() -> None:
    assert set(FORMULAS) <= set(FAMILIES)
    assert formula_of("interleaved-1f1b:3") is FORMULAS["interleaved-1f1b"]
    assert formula_of("fsdp:2") is None
