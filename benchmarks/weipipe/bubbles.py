"""Each family at equal and at unequal times: the formula, the turns, the schedule as built."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import FAMILIES, build_family
from pipeloom.solver.families.weights.ring import RingFamily

SIZES = ((4, 8), (4, 16), (8, 32), (16, 64))  # P, M
# how many turns a microbatch takes on a stage; of naive no formula is published
TURNS = {"weipipe-naive": None, "weipipe-interleave": 1.0, "wzb1": 1.5, "wzb2": 3.0}
HEAVY = 1.25  # of the last stage beside the others


def profiles(ranks: int) -> dict[str, Profile]:
    """T_F / T_B / T_W of every stage; then a heavier last stage; then a delay between ranks."""

    def equal(t_f: float, t_b: float, t_w: float, t_comm: float = 0.0) -> Profile:
        return Profile((StageProfile(t_f, t_b, t_w),) * ranks, ranks, t_comm=t_comm)

    last = StageProfile(HEAVY, HEAVY, HEAVY)
    heavy = Profile((*equal(1, 1, 1).stages[:-1], last), ranks)
    return {
        "1/1/1": equal(1, 1, 1),
        "1/1/0.5": equal(1, 1, 0.5),
        "1/1.2/0.8": equal(1, 1.2, 0.8),
        "1/1/1.5": equal(1, 1, 1.5),
        "1/1/2": equal(1, 1, 2),
        "1/2/1": equal(1, 2, 1),
        "2/1/1": equal(2, 1, 1),
        f"1/1/1, last stage x{HEAVY}": heavy,
        "1/1/1, delay 0.5": equal(1, 1, 1, t_comm=0.5),
    }


def measure() -> list[dict[str, Any]]:
    return [
        _row(name, ranks, count, words, profile)
        for ranks, count in SIZES
        for words, profile in profiles(ranks).items()
        for name in TURNS
    ]


def _row(name: str, ranks: int, count: int, words: str, profile: Profile) -> dict[str, Any]:
    timing = build_family(name, profile, count).known_timing
    built = timing.bubble_rate(Objective.MAKESPAN)
    found = formula(name, ranks, count)
    return {
        "family": name,
        "ranks": ranks,
        "microbatches": count,
        "times": words,
        "equal": words == "1/1/1",
        "formula": found,
        "turns": 1.0 - timing.work / (ranks * turns_time(name, profile, count)),
        "built": built,
        "period": timing.bubble_rate(Objective.PERIOD),
        "as_formula": found is None or math.isclose(built, found, abs_tol=1e-9),
    }


def formula(name: str, ranks: int, count: int) -> float | None:
    """The bubble rate of the makespan at equal times and no delay, P dividing M, M > P."""
    turns = TURNS[name]
    return None if turns is None else (ranks - 1) / (turns * count + ranks - 1)


def turns_time(name: str, profile: Profile, count: int) -> float:
    """The time of an iteration whose turns last as long as their busiest rank, without delays."""
    family = FAMILIES[name]
    assert isinstance(family, RingFamily)
    longest: dict[int, float] = defaultdict(float)
    for row in family.turns(profile.ranks, count).rows:
        work: dict[int, float] = defaultdict(float)
        for turn, op in row:
            work[turn] += _duration(profile.stages[op.stage], op.kind)
        for turn, time in work.items():
            longest[turn] = max(longest[turn], time)
    return sum(longest.values())


def _duration(stage: StageProfile, kind: OpKind) -> float:
    return {
        OpKind.F: stage.t_f,
        OpKind.B: stage.t_b,
        OpKind.W: stage.t_w,
        OpKind.BW: stage.t_b + stage.t_w,
    }[kind]
