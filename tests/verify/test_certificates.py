"""Certificates prove what they say; no mutant of one is accepted."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import pipeloom
from pipeloom.ir import (
    InputError,
    Link,
    Objective,
    OpKind,
    Problem,
    Profile,
    Report,
    Schedule,
    StageProfile,
    dump_schedule,
    simulate,
    timed,
    verify_certificate,
)
from pipeloom.ir.cost.remat import OFFLOADED, choice_of
from pipeloom.ir.model.ops import pack
from pipeloom.ir.verify.certificates.linear import LinearFacts
from pipeloom.ir.verify.schedule_facts import read_facts
from pipeloom.planner import certificate
from pipeloom.solver import solve
from pipeloom.solver.certificate import Refutation
from tests.support.random_schedules import LEVERS, random_order, with_levers

# certificates prove what they say, and nothing else is taken for a proof --------------------------


SEEDS = (0, 1, 2, 3, 8, 9, 10, 11)


def profile(seed: int) -> Profile:
    rng = random.Random(seed)
    ranks = rng.choice([2, 3, 4, 5])
    stages = tuple(
        StageProfile(*(rng.uniform(2, 12) for _ in "fbw"), m_b=1.0, m_w=rng.uniform(0.2, 1))
        for _ in range(ranks)
    )
    t_comm, limit = rng.choice([0, 0.5, 4]), rng.choice([ranks, 1.6 * ranks, 100])
    return Profile(stages, ranks, t_comm, memory_limit=(limit,) * ranks)


@cache
def certified(seed: int, objective: str = "period") -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {"placement": "linear", "solver": "heuristic", "work_limit": 20}
    answer = pipeloom.optimize(profile(seed), 3 + seed % 7, objective=objective, **options)
    return answer, answer.certificate()


def faults(answer: Any, certificate: dict[str, Any]) -> list[str]:
    return verify_certificate(dump_schedule(answer.schedule), certificate, "certificate")


@pytest.mark.parametrize("objective", ["period", "makespan"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_certified_is_proven(seed: int, objective: str) -> None:
    answer, certificate = certified(seed, objective)
    known = answer.schedule.report.lower_bound
    if certificate["lower_bound"] >= known / (1 + 1e-6):
        assert faults(answer, certificate) == []
    else:  # by an argument that has no certificate
        assert answer.schedule.report.bound in ("crossings", "slots", "throughput")
        assert "which the schedule claims" in faults(answer, certificate)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_cost_that_a_schedule_has_is_refuted(seed: int) -> None:
    """At the cost of a schedule, and above it, no tree can be made; what is made is no proof."""
    answer, _ = certified(seed)
    instance = LinearFacts.of(read_facts(dump_schedule(answer.schedule), "schedule"))
    assert Refutation(instance, answer.cost * 1.001).nodes() is None


def moments() -> tuple[Any, dict[str, Any]]:
    found = (certified(seed) for seed in SEEDS)
    trees = [pair for pair in found if len(pair[1]["argument"].get("nodes", ())) > 1]
    answer, certificate = trees[0]
    return answer, copy.deepcopy(certificate)


def test_every_change_of_a_tree_is_noticed() -> None:
    answer, certificate = moments()
    nodes = certificate["argument"]["nodes"]
    assert faults(answer, certificate) == []
    assert faults(answer, certificate | {"lower_bound": answer.cost * 1.001})
    for at in range(len(nodes)):
        for broken in (nodes[:at], nodes[:at] + nodes[at + 1 :], [*nodes, nodes[at]]):
            changed = copy.deepcopy(certificate)
            changed["argument"]["nodes"] = broken
            assert faults(answer, changed), at


def test_multipliers_that_leave_a_solution_are_no_proof() -> None:
    answer, certificate = moments()
    leaves = [node for node in certificate["argument"]["nodes"] if "multipliers" in node]
    leaves[-1]["multipliers"] = []
    assert "leave a solution" in faults(answer, certificate)[0]
    leaves[-1]["multipliers"] = [{"inequality": "cost", "stage": 99, "by": 1.0}]
    assert "no inequality 'cost' of stage 99" in faults(answer, certificate)[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"objective": "makespan"}, "objective: expected the schedule's, period"),
        ({"lower_bound": 1e-3}, "which the schedule claims"),
        ({"argument": {"kind": "work", "rank": 77}}, "work: proves 0, expected"),
        ({"argument": {"kind": "critical-path"}}, "critical-path: proves"),
    ],
)
def test_what_proves_less_or_something_else_is_told(change: dict[str, Any], words: str) -> None:
    answer, certificate = moments()
    assert words in faults(answer, certificate | change)[0]


@pytest.mark.parametrize("key", ["format", "objective", "lower_bound", "argument"])
def test_another_shape_is_wrong_input(key: str) -> None:
    answer, certificate = moments()
    for value in (None, [], {"kind": "faith"}, "1"):
        with pytest.raises(InputError, match=key):
            faults(answer, certificate | {key: value})


def test_lists_of_equal_numbers_are_proven_as_numbers_are() -> None:
    answer, certificate = moments()
    document = dump_schedule(answer.schedule)
    for stage in document["profile"]["stages"]:
        stage["t_f"] = [stage["t_f"]] * document["microbatches"]
    assert verify_certificate(document, certificate, "certificate") == []
    document["profile"]["stages"][0]["t_f"][0] *= 2
    assert verify_certificate(document, certificate, "certificate") == []  # the least counts
    document["profile"]["stages"][0]["t_f"][0] /= 4
    assert verify_certificate(document, certificate, "certificate")


def test_moments_are_no_whole_numbers_to_split() -> None:
    """A tree that left out all between 0 and 1 would prove any bound."""
    answer, certificate = moments()
    for moment in "SytVeC":
        nodes = [{"count": moment, "stage": 0, "most": 0}]
        changed = certificate | {"argument": {"kind": "moments", "nodes": nodes}}
        assert f"no count '{moment}' of stage 0" in faults(answer, changed)[0]


# what schedules do keeps all inequalities of ``moments``, with recomputation and offload too ------


def stage(rng: random.Random, ways: int) -> StageProfile:
    f, b, w, t_r = (rng.choice([0.5, 1.0, 2.0, 3.0]) for _ in "fbwr")
    again = {"t_r": t_r, "m_r": rng.choice([0.0, 1.0, 5.0])} if ways > 0 else {}
    offloaded = {"m_o": 0.5, "offload_bytes": rng.choice([1.0, 4.0])} if ways > 1 else {}
    m_w = rng.choice([0.0, 2.0, 4.0, 10.0])
    return StageProfile(f, b, w, 10.0, m_w, **again, **offloaded)


def any_schedule(seed: int) -> Schedule:
    """Ops in any order that can run, with the memory that they take as the limit."""
    rng = random.Random(seed)
    stages, microbatches, ways = rng.randint(1, 3), rng.randint(1, 5), rng.randint(0, 2)
    profile = Profile(
        tuple(stage(rng, ways) for _ in range(stages)),
        stages,
        t_comm=rng.choice([0.0, 0.5, 3.0]),
        host_link=Link(0.0, 1e-6) if ways > 1 else None,
    )
    objective = rng.choice(list(Objective))
    problem = Problem.linear(profile, microbatches, 1e6)
    rows = random_order(problem, 0.0, rng, forwards=rng.random())
    order = tuple(pack(with_levers(row, rng, LEVERS[: ways + 1])) for row in rows)
    peak = simulate(Schedule(problem, order)).peak_memory
    profile_limit = Problem(profile, microbatches, problem.placement, peak, objective)
    found = timed(Schedule(profile_limit, order))
    report = Report(objective, "any", lower_bound=0.0)
    return Schedule(profile_limit, order, timing=found.timing, report=report)


def variables_of(schedule: Schedule, i: int, unit: float) -> dict[tuple[str, int], float]:
    """The variables of stage i: its moments and its counts."""
    timing, ops = schedule.known_timing, schedule.ops(i)
    ways = int(schedule.problem.profile.stages[i].t_r is not None)
    choice = choice_of(schedule.problem, schedule.order)[i]
    at = {(op.kind, op.microbatch): place for place, op in enumerate(ops)}
    places = {kind: [at[kind, j] for j in range(len(choice))] for kind in (0, 1, 2)}
    first_b, last_f, last_b = min(places[1]), max(places[0]), max(places[1])
    start, end = timing.start[i], timing.end[i]
    found: defaultdict[str, float] = defaultdict(float)
    found |= {"S": start[0], "y": start[first_b], "t": start[last_f], "V": end[last_b]}
    found["e"] = max(end[place] for place in places[2])
    found = defaultdict(float, {name: float(x) / unit for name, x in found.items()})
    for j, way in enumerate(choice.tolist()):
        k = ways + 1 if way == OFFLOADED else way
        name = str(k) if k else ""
        if k:
            found["c" + name] += 1
        for moment, full, least in ((first_b, "n", "o"), (last_f, "a", "p")):
            if places[0][j] > moment or (places[1][j] <= moment and moment == last_f):
                continue
            back = at.get((OpKind.R, j), at.get((OpKind.L, j), -1))
            gone = at.get((OpKind.O, j), places[0][j] if way > 0 else 10**9)
            away = gone <= moment and back > moment
            found[(least if away else full) + name] += 1
        if places[2][j] > last_f:
            found["q"] += places[1][j] < last_f
            found["r"] += places[2][j] < last_b
    found["z"] = float(last_f < first_b)
    found["a"] -= not (ways or schedule.problem.profile.host_link)
    return {(name, i): value for name, value in found.items()}


def broken_rows(seed: int) -> list[str]:
    schedule = any_schedule(seed)
    unit = schedule.known_timing.cost(schedule.problem.objective)
    facts = LinearFacts.of(read_facts(dump_schedule(schedule), "schedule"))
    values: defaultdict[tuple[str, int], float] = defaultdict(float, {("C", 0): 1.0})
    for i in range(schedule.problem.stages):
        values |= variables_of(schedule, i, unit)
    outside = [
        f"{seed}: {variable}: {float(low)} <= {values[variable]} <= {float(high)}"
        for variable, (low, high) in facts.box().items()
        if not float(low) - 1e-9 <= values[variable] <= float(high) + 1e-9
    ]
    broken = [
        f"{seed}: {name} of {i}"
        for name, i, (terms, least) in facts.rows(Fraction(unit))
        if sum(float(x) * values[v] for v, x in terms.items()) < float(least) - 1e-9
    ]
    return outside + broken


@pytest.mark.parametrize("seed", range(25))
def test_every_schedule_keeps_every_inequality(seed: int) -> None:
    assert broken_rows(seed) == []


@pytest.mark.slow
def test_thousands_of_schedules_keep_every_inequality() -> None:
    assert [line for seed in range(25, 4000) for line in broken_rows(seed)] == []


@cache
def certified_remat(way: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schedule whose bound is by recomputing, or by copies, and its certificate."""
    sizes: dict[str, Any] = {"m_o": 0.0, "offload_bytes": 5.0}
    if way == "recomputed":
        sizes = {"t_r": 3.0, "m_r": 0.0}
    one = StageProfile(4.0, 3.0, 1.0, m_b=10.0, **sizes)
    host = Link(0.0, 1e-6) if way == "copied" else None
    profile = Profile((one,) * 2, 2, t_comm=2.0, host_link=host)
    schedule = solve(Problem.linear(profile, 4, 19.0), work_limit=2.0)
    return dump_schedule(schedule), certificate(schedule)


@pytest.mark.parametrize("way", ["recomputed", "copied"])
def test_bounds_with_remat_are_certified(way: str) -> None:
    document, found = certified_remat(way)
    assert found["argument"]["kind"] == "moments"
    assert verify_certificate(document, found, "certificate") == []
    for change in (1.01, 2.0):
        more = found | {"lower_bound": found["lower_bound"] * change}
        assert verify_certificate(document, more, "certificate")
    faster = copy.deepcopy(document)
    for each in faster["profile"]["stages"]:
        each |= {key: each[key] / 2 for key in ("t_f", "t_b") if key in each}
    assert verify_certificate(faster, found, "certificate")
