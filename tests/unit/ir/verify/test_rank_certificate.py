"""Certificates where ranks have several stages, or microbatches go both ways."""

import copy
import math
import random
from functools import cache
from typing import Any

import pytest

from benchmarks.gaps.instances import problem_of as gap_problem
from benchmarks.small_exact.instances import problem_of
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificate import verify_certificate
from pipeloom.ir.verify.certificates.ranks import RankFacts
from pipeloom.ir.verify.certificates.rows import NotProvenError
from pipeloom.ir.verify.schedule_facts import read_facts
from pipeloom.planner.explain.certificate import certificate
from pipeloom.solver.certificate import Refutation
from pipeloom.solver.optimize import optimize
from tests.support.oracle import TooManyOrdersError, exhaustive_optimum

KINDS = ("linear", "v", "several stages a rank", "two copies")


def instance_of(schedule: Schedule) -> RankFacts:
    return RankFacts.of(read_facts(dump_schedule(schedule), "schedule"))


@cache
def solved(seed: int) -> tuple[Schedule, float] | None:
    """The schedule of a small problem, and the optimum; None where it has none that is known."""
    problem = problem_of(KINDS[seed % len(KINDS)], seed)
    try:
        best = exhaustive_optimum(problem, nodes=20_000)
        return (
            (optimize(problem, work_limit=0.1, solver="heuristic"), best)
            if 0 < best < math.inf
            else None
        )
    except (TooManyOrdersError, InfeasibleError):
        return None


def refuted(first: int, number: int) -> int:
    """How many small problems were held against their optimum, just above which no tree is made."""
    found = 0
    for seed in range(first, first + number):
        known = solved(seed)
        try:
            instance = instance_of(known[0]) if known else None
        except NotProvenError:
            continue
        if known and instance:
            found += 1
            assert Refutation(instance, known[1] * (1 + 1e-6)).nodes() is None, seed
    return found


def test_no_optimum_is_refuted() -> None:
    assert refuted(0, 24) > 9


@pytest.mark.slow
def test_no_optimum_of_thousands_is_refuted() -> None:
    assert refuted(24, 3016) > 1500


@cache
def certified() -> tuple[dict[str, Any], dict[str, Any]]:
    """The document of a schedule with two copies, and its certificate, which has branches."""
    schedule = optimize(gap_problem("two copies", 2, 17), work_limit=10, solver="heuristic")
    return dump_schedule(schedule), certificate(schedule)


def test_every_change_of_a_tree_is_noticed() -> None:
    document, found = certified()
    nodes = found["argument"]["nodes"]
    assert verify_certificate(document, found, "certificate") == []
    assert found["argument"]["kind"] == "rank-moments"
    assert len(nodes) > 2
    for at in range(len(nodes)):
        for broken in (nodes[:at], nodes[:at] + nodes[at + 1 :], [*nodes, nodes[at]]):
            changed = copy.deepcopy(found)
            changed["argument"]["nodes"] = broken
            assert verify_certificate(document, changed, "certificate"), at


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_above_the_optimum_is_never_proven(seed: int) -> None:
    """Whatever the multipliers are."""
    document, found = copy.deepcopy(certified())
    rng = random.Random(seed)
    found["lower_bound"] = document["report"]["period"] * (1.001 + rng.random())
    for node in found["argument"]["nodes"]:
        for each in node.get("multipliers", ()):
            each["by"] *= rng.choice([0.0, 1.0, 1.0, rng.uniform(0, 1e3)])
    assert verify_certificate(document, found, "certificate")


def test_a_bound_without_a_certificate_is_told() -> None:
    document, found = copy.deepcopy(certified())
    document["report"] |= {"bound_name": "interleaving", "lower_bound": found["lower_bound"] * 1.01}
    said = verify_certificate(document, found, "certificate")
    assert said[0].endswith("but less; no argument for interleaving has a certificate yet")


def test_overlap_and_transfers_are_refused() -> None:
    document, found = copy.deepcopy(certified())
    document["profile"]["stages"][0]["t_fb"] = 0.5
    assert "knows no stages with t_fb" in verify_certificate(document, found, "certificate")[0]
    document, _ = copy.deepcopy(certified())
    document["passing"] = "weights"
    with pytest.raises(NotProvenError, match="rank-moments: expected weights that stay"):
        RankFacts.of(read_facts(document, "schedule"))


def test_where_no_tree_is_found_all_orders_are_tried() -> None:
    """The linear program of the tree fails where times are next to nothing."""
    stages = (
        StageProfile(0.2, 1e-9, 0.0, 0.8546662932771072, 0.8546662932771072),
        StageProfile(1e-9, 1.0, 1e-9, 0.4947988911473179, 0.24739944557365895),
    )
    delays = ((0.0, 1.1526635744005382), (4.859948114738296, 0.0))
    limits = (math.inf, 1.1867564385500824)
    profile = Profile(stages, 2, t_comm=delays)
    problem = Problem(profile, 2, Placement.bidirectional(2), limits, Objective.MAKESPAN)
    found = certificate(optimize(problem, work_limit=0.3))
    assert found["argument"]["kind"] == "every-order"


@pytest.mark.parametrize(
    ("t_bw", "microbatches", "why"),
    [
        (2.0, 500, "expected at most 40 pairs of stage and microbatch, got 1000"),
        (1.5, 3, "expected no BW shorter than B and W"),
    ],
)
def test_all_orders_are_not_tried_of_many_ops_nor_where_a_relaxed_rank_may_begin_too_soon(
    t_bw: float, microbatches: int, why: str
) -> None:
    """Even one beginning of many ops would take long."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0, t_bw=t_bw),) * 2, 2)
    problem = Problem.linear(profile, microbatches, math.inf)
    document = dump_schedule(optimize(problem, work_limit=0.01))
    forged = {
        "format": "pipeloom.certificate", "version": 1, "objective": "period",
        "lower_bound": document["report"]["lower_bound"], "argument": {"kind": "every-order"},
    }  # fmt: skip
    (said,) = verify_certificate(document, forged, "certificate")
    assert said.endswith(f"every-order: {why}")
