"""Certificates by what a rank can have run by when, and by all orders."""

import copy
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from benchmarks.gaps.instances import problem_of
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.verify.certificate import verify_certificate
from pipeloom.ir.verify.certificates.flow import FlowFacts
from pipeloom.ir.verify.certificates.rows import NotProvenError
from pipeloom.ir.verify.schedule_facts import read_facts
from pipeloom.planner.explain.certificate import certificate
from pipeloom.solver.bounds.several_stages.rank_flow import flow_bound
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.optimize import optimize


@cache
def certified() -> tuple[dict[str, Any], dict[str, Any]]:
    """The document of a schedule whose bound is by a rank's linear program, and its certificate."""
    problem = problem_of("interleaved", 0, 17)
    schedule = optimize(problem, work_limit=1, solver="heuristic")
    bound = flow_bound(problem, 0.0, schedule.known_timing.period, Budget(20.0), 100)
    report = replace(schedule.known_report, lower_bound=bound.value, bound_name=bound.name)
    schedule = replace(schedule, report=report)
    return dump_schedule(schedule), certificate(schedule)


def faults(found: dict[str, Any], **argument: Any) -> list[str]:
    changed = found | {"argument": found["argument"] | argument}
    return verify_certificate(certified()[0], changed, "certificate")


def test_a_bound_by_a_linear_program_is_proven_to_a_hair() -> None:
    document, found = certified()
    assert found["argument"]["kind"] == "rank-flow"
    assert faults(found) == []
    assert found["lower_bound"] >= document["report"]["lower_bound"] * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_above_a_cost_is_never_proven(seed: int) -> None:
    """Whatever rank, steps and multipliers are."""
    document, found = copy.deepcopy(certified())
    rng = random.Random(seed)
    found["lower_bound"] = document["report"]["period"] * (1.001 + rng.random())
    for node in found["argument"]["nodes"]:
        for each in node["multipliers"]:
            each["by"] *= rng.choice([0.0, 1.0, 1.0, rng.uniform(0, 1e3)])
    until, steps = rng.choice("BW"), found["argument"]["steps"] + rng.randint(-2, 2)
    assert faults(found, rank=rng.randrange(4), until=until, steps=steps)


def test_without_the_rows_that_all_has_run_nothing_is_refuted() -> None:
    _, found = certified()
    multipliers = found["argument"]["nodes"][0]["multipliers"]
    others = [each for each in multipliers if not each["inequality"].startswith("all of")]
    assert len(others) < len(multipliers)
    assert "leave a solution" in faults(found, nodes=[{"multipliers": others}])[0]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"rank": 77}, "rank-flow: no stage is on rank 77"),
        ({"steps": 10_000}, "rank-flow: steps: expected at most"),
        ({"nodes": [{"count": "F0", "stage": 1, "most": 0}]}, "no count 'F0' of stage 1"),
    ],
)
def test_what_is_no_argument_is_told(argument: dict[str, Any], words: str) -> None:
    assert words in faults(certified()[1], **argument)[0]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"steps": 0}, "steps: expected a whole number >= 1 and <= 10000"),
        ({"until": "F"}, "until: expected"),
    ],
)
def test_another_shape_is_wrong_input(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        faults(certified()[1], **argument)


def test_rank_until_and_steps_are_needed() -> None:
    facts = read_facts(certified()[0], "schedule")
    with pytest.raises(NotProvenError, match="expected rank, until and steps"):
        FlowFacts.of(facts, {"rank": 0})
    instance = FlowFacts.of(facts, {"rank": 0, "until": "B", "steps": 3})
    assert list(instance.rows(instance.beside or Fraction(1))) == []
