"""Table 2 of the DeepSeek-V3 report, and the built schedules that it is about.

F, B and W are the times of a rank's part of the model: B a whole backward, W the weights' part of
it, F&B both at once. Memory is in parts of the model: weights of a stage, activations of one
microbatch on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from pipeloom import Profile, Schedule, StageProfile, build_family
from pipeloom.ir import Timing, footprint

from .. import Case, Claim, Column, Row, Rows, Size, Table, violations

RANKS = (2, 4, 8, 16)
ROUNDS = (2, 3, 5)  # M / P
SHOWN = 8  # ranks of the table


@dataclass(frozen=True, slots=True)
class Times:
    f: float
    b: float
    w: float
    fb: float

    def __str__(self) -> str:
        return f"F {self.f:g}, B {self.b:g}, W {self.w:g}, F&B {self.fb:g}"

    def profile(self, ranks: int) -> Profile:
        stage = StageProfile(self.f, self.b - self.w, self.w, weight_bytes=1.0, t_fb=self.fb)
        return Profile((stage,) * ranks, ranks)


TIMES = (
    Times(1.0, 2.0, 1.0, 3.0),
    Times(1.0, 2.0, 1.0, 2.4),
    Times(1.0, 1.8, 0.8, 2.2),
    Times(18.522, 27.423, 9.337, 36.756),  # 1.5B of the Zero Bubble paper, F&B 80 %
    Times(29.718, 49.371, 19.927, 63.271),  # 6.2B of it
    Times(1.0, 2.5, 1.5, 2.8),
)


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table and the family that it is; ``at_rank`` is one whose idle time it gives."""

    family: str
    bubble: Callable[[int, Times], float]
    parameters: float
    activations: Callable[[int], float]
    at_rank: Callable[[int], int]
    holds: Callable[[Times], bool]
    condition: str


METHODS = {
    "1F1B": Method(
        "1f1b",
        lambda p, t: (p - 1) * (t.f + t.b),
        1.0,
        lambda p: p,
        lambda p: 0,
        lambda t: True,
        "always",
    ),
    "ZB1P": Method(
        "zb-h1",
        lambda p, t: (p - 1) * (t.f + t.b - 2 * t.w),
        1.0,
        lambda p: p,
        lambda p: 0,
        lambda t: t.w <= t.f,
        "where W <= F",
    ),
    "DualPipe": Method(
        "dualpipe",
        lambda p, t: (p / 2 - 1) * (t.fb + t.b - 3 * t.w),
        2.0,
        lambda p: p + 1,
        lambda p: p // 2 - 1,
        lambda t: t.w <= t.f and math.isclose(t.f, t.b - t.w),
        "where F = B - W >= W",
    ),
}


def cases(size: Size) -> Iterator[Case]:
    for method, ranks, rounds, times in product(METHODS, RANKS, ROUNDS, TIMES):
        if size != "small" or ranks == SHOWN:
            given = {"which": (method, ranks, rounds, times)}
            yield Case("formulas", f"{method} {ranks} x {rounds * ranks}: {times}", given)


def measure(case: Case) -> Row:
    return cell(*case.given["which"])


def cell(name: str, ranks: int, rounds: int, times: Times) -> Row:
    """A method's schedule beside its formulas: bubble in ms, memory in parts.

    Raises AssertionError if it is not valid.
    """
    method = METHODS[name]
    schedule = build_family(method.family, times.profile(ranks), rounds * ranks)
    wrong = violations(schedule)
    assert not wrong, wrong
    bubble = method.bubble(ranks, times), idle(schedule.known_timing, method.at_rank(ranks))
    parameters = method.parameters, max(footprint(schedule).weights)
    activations = method.activations(ranks), held(schedule)
    pairs = (bubble, parameters, activations)
    return {
        "method": name,
        "ranks": ranks,
        "microbatches": rounds * ranks,
        "times": str(times),
        "condition_holds": method.holds(times),
        "equal": all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs),
        "bubble": {"published": round(bubble[0], 6), "built": round(bubble[1], 6)},
        "parameters": parameters[1],
        "activations": activations[1],
    }


def held(schedule: Schedule) -> float:
    return max(schedule.known_timing.peak_memory)


def idle(timing: Timing, rank: int) -> float:
    """The part of the makespan in which a rank computes nothing."""
    busy, until = 0.0, -math.inf
    for start, end in zip(timing.start[rank].tolist(), timing.end[rank].tolist(), strict=True):
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return timing.makespan - busy


def judge(rows: Rows) -> Iterator[Claim]:
    for method, how in METHODS.items():
        for holds in (True, False):
            own = [r for r in rows if (r["method"], r["condition_holds"]) == (method, holds)]
            equal = sum(row["equal"] for row in own)
            where = how.condition if holds else f"not {how.condition}"
            words = f"{method}'s published bubble and memory, {where}: {equal} of {len(own)} equal."
            if own:
                yield Claim("formulas", words, not holds or equal == len(own))


def _bubble(row: Row) -> str:
    return " / ".join(f"{round(row['bubble'][key], 3):g}" for key in ("published", "built"))


columns = {
    "formulas": Table(
        [
            Column("method", "method"),
            Column("times", "times"),
            Column("condition holds", lambda rows: str(rows[0]["condition_holds"])),
            Column(f"bubble on {SHOWN} ranks, published / built", lambda rows: _bubble(rows[0])),
            Column("parameters", "parameters", "g"),
            Column("activations", "activations", "g"),
        ],
        by=lambda row: (row["method"], row["times"]),
        where=lambda row: row["ranks"] == SHOWN,
    )
}
