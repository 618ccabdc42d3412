"""Published families that pass weights: bubbles compared with their formulas, and the bytes sent.

A *turn* is one step of the ring, after which each rank passes weights on to the next rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from pipeloom import Objective, Profile, StageProfile, build_family
from pipeloom.ir import traffic
from pipeloom.solver import FAMILIES

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part, plain
from ..table import digits

BUBBLES, SENT = "weipipe bubbles", "weipipe sent"
SIZES = ((4, 8), (4, 16), (8, 32), (16, 64))  # P, M
# turns per microbatch and stage; no formula is published for weipipe-naive
TURNS = {"weipipe-naive": None, "weipipe-interleave": 1.0, "wzb1": 1.5, "wzb2": 3.0}
RANKS, FEW, MANY = 8, 32, 64  # P, and two M whose difference excludes the ramps of the pipeline
LAYER = 12.0  # weights of a layer, in units of H^2
HEAVY = 1.25  # times of the last stage, relative to the other stages


def profiles(ranks: int) -> dict[str, Profile]:
    """Profiles by name: with the same T_F / T_B / T_W on all stages, with a slower last stage, and
    with a delay."""

    def equal(t_f: float, t_b: float, t_w: float, t_comm: float = 0.0) -> Profile:
        return Profile((StageProfile(t_f, t_b, t_w),) * ranks, ranks, t_comm=t_comm)

    last = StageProfile(HEAVY, HEAVY, HEAVY)
    heavy = Profile((*equal(1, 1, 1).stages[:-1], last), ranks)
    times = ("1/1/1", "1/1/0.5", "1/1.2/0.8", "1/1/1.5", "1/1/2", "1/2/1", "2/1/1")
    found = {each: equal(*map(float, each.split("/"))) for each in times}
    delayed = equal(1, 1, 1, t_comm=0.5)
    return found | {f"1/1/1, last stage x{HEAVY}": heavy, "1/1/1, delay 0.5": delayed}


def cases(size: Size) -> Iterator[Case]:
    for ranks, count in SIZES[: 1 if size == "small" else None]:
        for (words, profile), name in product(profiles(ranks).items(), TURNS):
            given = {"built": (name, ranks, count, words, profile)}
            yield Case(BUBBLES, f"{name} {ranks} x {count}: {words}", given)
    for name in TURNS:
        yield Case(SENT, name, {"sent": name})


def measure(case: Case) -> Row:
    return _built(*case.given["built"]) if case.part == BUBBLES else elements(case.given["sent"])


def _built(name: str, ranks: int, count: int, words: str, profile: Profile) -> Row:
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
        "built": built,
        "as_formula": found is None or math.isclose(built, found, abs_tol=1e-9),
    }


def formula(name: str, ranks: int, count: int) -> float | None:
    """The published bubble rate of the makespan, or None if no formula is published.

    It holds for equal times, no delay, P dividing M, and M > P.
    """
    turns = TURNS[name]
    return None if turns is None else (ranks - 1) / (turns * count + ranks - 1)


def elements(name: str) -> Row:
    """The numbers of elements that a family sends over each link of the ring in its steady state.

    ``turn``: elements per turn, in units of H^2. ``microbatch``: elements per microbatch and layer,
    in the same unit. ``turns``: turns per microbatch.
    """
    microbatch = _sent(name, MANY) - _sent(name, FEW)
    family: Any = FAMILIES[name]
    few, many = (
        max(turn for row in family.turns(RANKS, count).rows for turn, _ in row)
        for count in (FEW, MANY)
    )
    turns = (many - few) / (MANY - FEW)
    elements = LAYER * microbatch / (MANY - FEW)
    return {"family": name, "turns": turns, "turn": elements / turns, "microbatch": elements}


def _sent(name: str, count: int) -> float:
    """The amount that each rank sends to the next one per iteration, in units of the weights of a
    stage.

    All links between neighbors carry the same amount. Transfers from and to owners at the start and
    the end do not depend on ``count``, the number of microbatches.
    """
    unit = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0),) * RANKS, RANKS)
    sent = traffic(build_family(name, unit, count))
    return float(np.diagonal(np.roll(sent, -1, axis=1)).min())


def judge(rows: Rows) -> Iterator[Claim]:
    equal = [row for row in of_part(rows, BUBBLES) if row["equal"]]
    met = sum(row["as_formula"] for row in equal)
    words = (
        "With equal times, the bubbles of WeiPipe's families equal their published formulas in "
        f"{met} of {len(equal)} cases."
    )
    yield Claim(BUBBLES, words, met == len(equal))


def _both(name: str) -> Column:
    def cell(rows: list[Row]) -> str | None:
        row = next((row for row in rows if row["family"] == name), None)
        if row is None:
            return None
        formula = "-" if row["formula"] is None else digits(row["formula"])
        return f"{formula} / {digits(row['built'])}"

    return Column(name, cell)


columns = {
    BUBBLES: Table(
        *plain({"P": "ranks", "M": "microbatches"}, "d"),
        *plain({"T_F/T_B/T_W": "times"}),
        *map(_both, TURNS),
        by=lambda row: (row["ranks"], row["microbatches"], row["times"]),
    ),
    SENT: Table(
        *plain("family"),
        *plain({"turns per microbatch": "turns", "H^2 elements per turn": "turn"}, "g"),
        *plain({"per microbatch and layer": "microbatch"}, "g"),
    ),
}
