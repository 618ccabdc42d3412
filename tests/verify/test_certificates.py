"""Certificates prove what they say; no mutant of one is accepted."""

from __future__ import annotations

import copy
import random
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

import pipeloom
from pipeloom.ir import (
    InfeasibleError,
    InputError,
    Objective,
    OpKind,
    Problem,
    Profile,
    Report,
    Schedule,
    StageProfile,
    dump_schedule,
    pack,
    simulate,
    timed,
    verify_certificate,
)
from pipeloom.ir.verify.certificates.linear import LinearFacts
from pipeloom.ir.verify.certificates.moments import MomentArcs
from pipeloom.ir.verify.certificates.slots import span
from pipeloom.ir.verify.schedule_facts import read_facts
from pipeloom.solver.bounds.moments import moment_graph
from tests.support.random_schedules import random_order

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
        assert answer.schedule.report.bound in ("crossings", "slots", "moments")
        assert "which the schedule claims" in faults(answer, certificate)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_cost_that_a_schedule_has_is_refuted(seed: int) -> None:
    """At the cost of a schedule, and above it, there are no paths; those made are no proof."""
    answer, certificate = certified(seed)
    graph = moment_graph(answer.schedule.problem).closing()
    assert graph.refutation(answer.cost * 1.001) == []
    if certificate["argument"]["kind"] == "moments":
        assert faults(answer, certificate | {"lower_bound": answer.cost * 1.001})


@cache
def rounded() -> tuple[Any, dict[str, Any]]:
    """A certificate whose last path needs others."""
    for seed in range(100):
        try:
            answer, certificate = certified(seed)
        except InfeasibleError:
            continue
        if len(certificate["argument"].get("paths", ())) > 1:
            return answer, certificate
    raise AssertionError("no seed needs several paths")


def moments() -> tuple[Any, dict[str, Any]]:
    answer, certificate = rounded()
    return answer, copy.deepcopy(certificate)


def test_every_path_and_every_node_is_needed() -> None:
    answer, certificate = moments()
    paths = certificate["argument"]["paths"]
    assert faults(answer, certificate) == []
    for at, path in enumerate(paths):
        for broken in ([], [path[:-1]], [path[:1], path[1:]], [["S99", *path]]):
            changed = copy.deepcopy(certificate)
            changed["argument"]["paths"] = [*paths[:at], *broken, *paths[at + 1 :]]
            assert faults(answer, changed), (at, broken)


def test_nodes_without_an_inequality_are_no_proof() -> None:
    answer, certificate = moments()
    for path in (["y0", "S0", "y0"], ["E0", "E1", "E0"], ["faith", "faith"], ["S0", "E9", "S0"]):
        certificate["argument"]["paths"] = [path]
        assert "no inequality from" in faults(answer, certificate)[0]
    certificate["argument"]["paths"] = [["S0", "Iy0"]]
    assert "expected both ends at one moment" in faults(answer, certificate)[0]


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


# what schedules do keeps all inequalities of ``moments`` ------------------------------------------


def stage(rng: random.Random) -> StageProfile:
    f, b, w = (rng.choice([0.0, 0.5, 1.0, 2.0, 3.0]) for _ in "fbw")
    return StageProfile(f, b, w, 10.0, rng.choice([0.0, 2.0, 4.0, 10.0]))


def any_schedule(seed: int) -> Schedule:
    """Ops in any order that can run, with the memory that they take as the limit."""
    rng = random.Random(seed)
    stages, microbatches = rng.randint(1, 4), rng.randint(1, 5)
    profile = Profile(
        tuple(stage(rng) for _ in range(stages)), stages, t_comm=rng.choice([0.0, 0.5, 3.0])
    )
    objective = rng.choice(list(Objective))
    problem = Problem.linear(profile, microbatches, 1e6)
    rows = random_order(problem, 0.0, rng, forwards=rng.random())
    order = tuple(pack(row) for row in rows)
    peak = simulate(Schedule(problem, order)).peak_memory
    limited = Problem(profile, microbatches, problem.placement, peak, objective)
    found = timed(Schedule(limited, order))
    return Schedule(limited, order, timing=found.timing, report=Report(objective, "any"))


def times_of(schedule: Schedule) -> dict[str, float]:
    """The time of each moment, and the idle time of its rank by then."""
    found = {"start": 0.0}
    for s in range(schedule.problem.stages):
        timing, kinds = schedule.known_timing, [op.kind for op in schedule.ops(s)]
        start, end = timing.start[s], timing.end[s]
        of = {kind: [at for at, each in enumerate(kinds) if each is kind] for kind in OpKind}
        found[f"S{s}"], found[f"E{s}"] = float(start[0]), float(end[-1])
        found[f"y{s}"], found[f"V{s}"] = float(start[of[OpKind.B][0]]), float(end[of[OpKind.B][-1]])
        found[f"t{s}"] = float(start[of[OpKind.F][-1]])
        for moment in "ytV":
            now = found[f"{moment}{s}"]
            found[f"I{moment}{s}"] = now - sum(
                max(0.0, min(b, now) - a) for a, b in zip(start, end, strict=True)
            )
    return found


def broken(seed: int) -> list[str]:
    """The arcs, and the bounds of links, that a schedule does not keep at its own cost."""
    schedule = any_schedule(seed)
    cost = schedule.known_timing.cost(schedule.problem.objective)
    facts, times = read_facts(dump_schedule(schedule), "schedule"), times_of(schedule)
    of = next(iter(LinearFacts.each(facts)))
    held = MomentArcs(of, Fraction(cost) / of.unit)
    wrong = [
        f"{seed}: {before} to {after}"
        for (before, after), length in held.arcs.items()
        if times[after] - times[before] < float(length * of.unit) - 1e-9
    ]
    for moment, values in held.values.items():
        run = times[moment] - times[f"I{moment}"]
        if min(abs(run - float(value * of.unit)) for value, _ in values) > 1e-9:
            wrong.append(f"{seed}: {moment}: {run}")
    for s in range(len(of.stages)):
        if times[f"E{s}"] - times[f"S{s}"] < span(of, s) * float(of.unit) - 1e-9:
            wrong.append(f"{seed}: slots of {s}")
    return wrong


@pytest.mark.parametrize("seed", range(25))
def test_every_schedule_keeps_every_inequality(seed: int) -> None:
    assert broken(seed) == []


@pytest.mark.slow
def test_thousands_of_schedules_keep_every_inequality() -> None:
    assert [line for seed in range(25, 4000) for line in broken(seed)] == []
