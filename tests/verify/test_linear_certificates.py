"""What schedules do keeps all inequalities of ``moments``, with recomputation and offload too."""

import copy
import random
from collections import defaultdict
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from pipeloom.ir.cost.remat import OFFLOADED, choice_of
from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.ops import Op, OpKind, pack
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.ir.verify.certificate import verify_certificate
from pipeloom.ir.verify.certificates.linear import LinearFacts
from pipeloom.ir.verify.schedule_facts import read_facts
from pipeloom.planner.explain.certificate import certificate
from pipeloom.solver.optimize import optimize


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
    left, ran = {}, set()
    for s in range(stages):
        for j in range(microbatches):
            way = rng.randint(0, ways)
            kinds = ((), (OpKind.R,), (OpKind.O, OpKind.L))[way]
            between = [Op(kind, s, j) for kind in kinds]
            left[s, j] = [Op(OpKind.F, s, j), *between, Op(OpKind.B, s, j), Op(OpKind.W, s, j)]
    rows: list[list[Op]] = [[] for _ in range(stages)]
    favour = rng.random()  # of F's: how full memory becomes
    while left:
        ready = [ops[0] for ops in left.values() if waits_for(ops[0], stages) in ran | {None}]
        forwards = [op for op in ready if op.kind is OpKind.F]
        op = rng.choice(forwards if forwards and rng.random() < favour else ready)
        rows[op.stage].append(left[op.stage, op.microbatch].pop(0))
        ran.add((op.kind, op.stage, op.microbatch))
        left = {pair: ops for pair, ops in left.items() if ops}
    order = tuple(map(pack, rows))
    peak = simulate(Schedule(problem, order)).peak_memory
    profile_limit = Problem(profile, microbatches, problem.placement, peak, objective)
    found = timed(Schedule(profile_limit, order))
    report = Report(objective, "any", lower_bound=0.0)
    return Schedule(profile_limit, order, timing=found.timing, report=report)


def waits_for(op: Op, stages: int) -> tuple[OpKind, int, int] | None:
    if op.kind is OpKind.F and op.stage:
        return OpKind.F, op.stage - 1, op.microbatch
    if op.kind is OpKind.B and op.stage + 1 < stages:
        return OpKind.B, op.stage + 1, op.microbatch
    return None


def moments(schedule: Schedule, i: int, unit: float) -> dict[tuple[str, int], float]:
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
        values |= moments(schedule, i, unit)
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
def certified(way: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schedule whose bound is by recomputing, or by copies, and its certificate."""
    sizes: dict[str, Any] = {"m_o": 0.0, "offload_bytes": 5.0}
    if way == "recomputed":
        sizes = {"t_r": 3.0, "m_r": 0.0}
    one = StageProfile(4.0, 3.0, 1.0, m_b=10.0, **sizes)
    host = Link(0.0, 1e-6) if way == "copied" else None
    profile = Profile((one,) * 2, 2, t_comm=2.0, host_link=host)
    schedule = optimize(Problem.linear(profile, 4, 19.0), work_limit=2.0)
    return dump_schedule(schedule), certificate(schedule)


@pytest.mark.parametrize("way", ["recomputed", "copied"])
def test_bounds_with_remat_are_certified(way: str) -> None:
    document, found = certified(way)
    assert found["argument"]["kind"] == "moments"
    assert verify_certificate(document, found, "certificate") == []
    for change in (1.01, 2.0):
        more = found | {"lower_bound": found["lower_bound"] * change}
        assert verify_certificate(document, more, "certificate")
    faster = copy.deepcopy(document)
    for each in faster["profile"]["stages"]:
        each |= {key: each[key] / 2 for key in ("t_f", "t_b") if key in each}
    assert verify_certificate(faster, found, "certificate")


def test_counts_of_ways_that_there_are_none_of_are_told() -> None:
    document, found = copy.deepcopy(certified("copied"))
    found["argument"]["nodes"] = [{"count": "c9", "stage": 0, "most": 1}]
    assert "no count 'c9' of stage 0" in verify_certificate(document, found, "certificate")[0]


def test_the_least_of_unlike_microbatches_is_what_is_proven() -> None:
    one = StageProfile(4.0, 3.0, 1.0, m_b=10.0)
    schedule = optimize(Problem.linear(Profile((one,) * 2, 2), 4, 40.0), work_limit=1.0)
    document, found = dump_schedule(schedule), certificate(schedule)
    for each in document["profile"]["stages"]:
        each["t_f"] = [each["t_f"] * x for x in (1.0, 1.5, 1.0, 2.0)]
    assert verify_certificate(document, found, "certificate") == []
    assert np.isfinite(found["lower_bound"])
