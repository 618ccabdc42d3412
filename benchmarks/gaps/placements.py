"""``optimize`` without a given placement, compared with ``optimize`` for each single placement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from statistics import mean, median
from typing import Any, TypeAlias

import numpy as np

import pipeloom
from pipeloom import InfeasibleError, Profile, Result, StageProfile
from pipeloom.solver import placements

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain, violations
from . import unequal

PART, NUMBER, SEED, SECONDS, RUNS = "placements", 10, 1, 20.0, 3
MOST, MOST_MEAN = 0.01, 0.005
"""The largest values allowed for the maximum and for the mean of :func:`excess` over all random
profiles."""
WRITTEN, MOST_BUBBLE = "equal stages", 0.005
"""The name of the case whose profile is not random, and the largest bubble rate allowed for it."""


Asked: TypeAlias = tuple[str, Profile, int, float]
"""A description, a profile with one stage per rank, the number of microbatches, and the memory
limit."""


def drawn(seed: int, number: int) -> Asked:
    """A random case with unequal stages or links, reproducible from seed and number."""
    rng = np.random.default_rng((seed, number))
    kind, ranks = str(rng.choice(list(unequal.KINDS))), int(rng.integers(3, 11))
    profile = unequal.drawn(kind, ranks, rng)
    microbatches = int(rng.integers(ranks, 4 * ranks + 1))
    share = round(float(rng.uniform(0.5, 2.0)), 2)
    limit = share * ranks * max(stage.m_b for stage in profile.stages)
    words = f"{kind}, P={ranks}, M={microbatches}, {share:g} P M_B"
    return words, profile, microbatches, limit


def written() -> Asked:
    """A case of eight equal stages, for which the linear placement costs 8 % more than the best
    placement."""
    stages = (StageProfile(12.0, 13.0, 9.0, 2.1e9, 1.2e9),) * 8
    return "equal, P=8, M=16, 1.79 P M_B", Profile(stages, 8, 0.4), 16, 30e9


def cases(size: Size) -> Iterator[Case]:
    if size == "small":
        return
    yield Case(PART, WRITTEN, timed=True)
    for number in range(NUMBER):
        yield Case(PART, f"profile {number}", {"number": number}, timed=True)


def measure(case: Case) -> Row:
    """The cost with each given placement, and the costs with the placement that ``optimize``
    chooses, for three seeds.

    Every call has the same time limit.
    """
    asked = written() if case.name == WRITTEN else drawn(SEED, case.given["number"])
    words, profile, microbatches, limit = asked
    faults: list[str] = []

    def solved(**given: Any) -> Result:
        limits = {"memory_limit": limit, "time_limit": SECONDS, **given}
        answer = pipeloom.optimize(profile, microbatches, **limits)
        faults.extend(violations(answer.schedule))
        return answer

    alone: dict[str, float] = {}
    for _, placement in placements(profile):
        with suppress(InfeasibleError):
            alone[placement.name] = solved(placement=placement.name).cost
    runs = [solved(seed=run) for run in range(RUNS)]
    work = microbatches * sum(s.t_f + s.t_b + s.t_w for s in profile.stages) / profile.ranks
    return {
        "profile": words,
        "alone": alone,
        "plain": [{"placement": _chosen(each), "cost": each.cost} for each in runs],
        "work": work,
        "violations": faults,
    }


def _chosen(answer: Result) -> str:
    return next(one.name for one in answer.candidates if one.reason is None)


def excess(one: Row) -> float:
    """The relative excess of the median cost with the placement that ``optimize`` chooses over the
    best cost with a given placement."""
    return _plain(one) / _best(one)[1] - 1


def judge(rows: Rows) -> Iterator[Claim]:
    above = [excess(row) for row in rows if row["case"] != WRITTEN]
    valid = not any(row["violations"] for row in rows)
    if above:
        words = (
            f"Without a given placement, `optimize` finds schedules in {SECONDS:g} s that cost "
            f"{mean(above):.2%} more on average, and {max(above):.2%} at most, than those for the "
            f"best placement, solved by itself for as long, on {len(above)} random profiles."
        )
        yield Claim(PART, words, valid and max(above) <= MOST and mean(above) <= MOST_MEAN)
    for bubble in (_bubble(row) for row in rows if row["case"] == WRITTEN):
        words = f"On 8 equal stages, `optimize` reaches a bubble of {bubble:.2%} in "
        yield Claim(PART, f"{words}{SECONDS:g} s.", valid and bubble <= MOST_BUBBLE)


def _best(row: Row) -> tuple[str, float]:
    found: tuple[str, float] = min(row["alone"].items(), key=lambda item: item[1])
    return found


def _plain(row: Row) -> float:
    return float(median(run["cost"] for run in row["plain"]))


def _bubble(row: Row) -> float:
    return float(1 - row["work"] / _plain(row))


def _choices(row: Row) -> str:
    return ", ".join(dict.fromkeys(run["placement"] for run in row["plain"]))


columns = {
    PART: Table(
        *plain("profile"),
        Column("best given placement", lambda row: "{}, {:.6g} ms".format(*_best(row))),
        Column("its bubble", lambda row: 1 - row["work"] / _best(row)[1], ".2%"),
        Column("placement chosen, ms", _plain, ".6g"),
        Column("choices", _choices),
        Column("bubble", _bubble, ".2%"),
        Column("excess", excess, "+.2%"),
    )
}
