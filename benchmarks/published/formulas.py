"""Table 2 of the DeepSeek-V3 report, compared with the schedules that its formulas describe.

F, B and W are the times of the part of the model on one rank. As in the report, B is the whole
backward, W its weight gradients, and F&B a forward and a backward that run at the same time. Memory
is in units of the weights of a stage, and of the activations of one microbatch on a stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pipeloom import Profile, StageProfile, build_family
from pipeloom.compiler import footprint
from pipeloom.ir import Timing

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain, violations

PART = "formulas"
RANKS = (2, 4, 8, 16)
ROUNDS = (2, 3, 5)  # M / P
SHOWN = 8  # the table shows rows with this number of ranks
METHODS = {
    "1F1B": ("1f1b", ""),
    "ZB1P": ("zb-h1", " with W <= F"),
    "DualPipe": ("dualpipe", " with F = B - W >= W"),
}
"""For each row of the table: its family, and the condition under which its formula holds."""


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

    def holds(self, method: str) -> bool:
        """Whether these times satisfy the condition of the method's formula."""
        even = math.isclose(self.f, self.b - self.w)
        return method == "1F1B" or (self.w <= self.f and (method == "ZB1P" or even))

    def published(self, method: str, p: int) -> tuple[float, float, float]:
        """The bubble, the parameters and the activations on ``p`` ranks according to the table."""
        if method == "1F1B":
            return (p - 1) * (self.f + self.b), 1.0, p
        if method == "ZB1P":
            return (p - 1) * (self.f + self.b - 2 * self.w), 1.0, p
        return (p / 2 - 1) * (self.fb + self.b - 3 * self.w), 2.0, p + 1


TIMES = (
    Times(1.0, 2.0, 1.0, 3.0),
    Times(1.0, 2.0, 1.0, 2.4),
    Times(1.0, 1.8, 0.8, 2.2),
    Times(18.522, 27.423, 9.337, 36.756),  # 1.5B of the Zero Bubble paper, F&B = 0.8 (F + B)
    Times(29.718, 49.371, 19.927, 63.271),  # 6.2B of the Zero Bubble paper
    Times(1.0, 2.5, 1.5, 2.8),
)


def cases(size: Size) -> Iterator[Case]:
    for method, ranks, rounds, times in product(METHODS, RANKS, ROUNDS, TIMES):
        if size != "small" or ranks == SHOWN:
            given = {"name": method, "ranks": ranks, "count": rounds * ranks, "times": times}
            yield Case(PART, f"{method} {ranks} x {rounds * ranks}: {times}", given)


def measure(case: Case) -> Row:
    """Compare the schedule of a method with the formulas of that method, and return the figures of
    both.

    The bubble is the idle time of rank 0, or for DualPipe that of a rank in the middle. Raises
    AssertionError if the schedule is not valid.
    """
    name, ranks, count, times = case.given.values()
    schedule = build_family(METHODS[name][0], times.profile(ranks), count)
    wrong = violations(schedule)
    assert not wrong, wrong
    timing, published = schedule.known_timing, times.published(name, ranks)
    bubble = _idle(timing, ranks // 2 - 1 if name == "DualPipe" else 0)
    built = (bubble, max(footprint(schedule).weights), max(timing.peak_memory))
    pairs = zip(published, built, strict=True)
    return {
        "method": name,
        "ranks": ranks,
        "microbatches": count,
        "times": str(times),
        "condition_holds": times.holds(name),
        "equal": all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs),
        "bubble": {"published": round(published[0], 6), "built": round(bubble, 6)},
        "parameters": built[1],
        "activations": built[2],
    }


def _idle(timing: Timing, rank: int) -> float:
    """The part of the makespan in which ``rank`` does not compute, in ms."""
    busy, until = 0.0, -math.inf
    for start, end in zip(timing.start[rank].tolist(), timing.end[rank].tolist(), strict=True):
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return timing.makespan - busy


def judge(rows: Rows) -> Iterator[Claim]:
    for (method, (_, condition)), holds in product(METHODS.items(), (True, False)):
        own = [r for r in rows if (r["method"], r["condition_holds"]) == (method, holds)]
        equal = sum(row["equal"] for row in own)
        where = f"cases{condition}" if holds else "other cases"
        words = f"{method} has its published bubble and memory in {equal} of {len(own)} {where}."
        if own:
            yield Claim(PART, words, not holds or equal == len(own))


def _bubble(rows: list[Row]) -> str:
    return " / ".join(f"{round(rows[0]['bubble'][key], 3):g}" for key in ("published", "built"))


columns = {
    PART: Table(
        *plain("method times"),
        Column("condition holds", lambda rows: str(rows[0]["condition_holds"])),
        Column(f"bubble on {SHOWN} ranks, published / built", _bubble),
        *plain("parameters activations", "g"),
        by=lambda row: (row["method"], row["times"]),
        where=lambda row: row["ranks"] == SHOWN,
    )
}
