"""The memory frontier, certified: sets of instances with one stage a rank, and targets of each.

The seconds are those of ``optimize``, each in a process of its own, so that no instance profits
from another one's warm state and that peak memory is its own."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np

from pipeloom import Objective, Problem, Profile, Schedule, solve
from pipeloom.solver import smallest_limit

from .. import Case, Claim, Column, Rows, Size, Table, of_part, violations
from .. import Row as Figures
from ..published.table5 import Row, load_rows
from .heuristic import published
from .unequal import KINDS, M_B, ODD_SHARES, unequal

SHARES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
BELOW = (0.25, 0.5, 0.75)
SCALE = ((64, 1024), (256, 1024))
SEEDS = 40
"""Instances of each unequal kind."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One cell: a problem, its solver, and the seconds that the target allows.

    ``row`` groups cells (a row of table 5, a kind). ``share`` is the limit as a multiple of
    P x M_B (of the base profile, where stages differ); ``published`` the bubble rate that the
    heuristic reaches there.
    """

    name: str
    row: str
    problem: Problem
    time_limit: float
    solver: str = "auto"
    share: float = 1.0
    published: float | None = None


def table5() -> list[Instance]:
    """Twelve rows at six limits; 10 s on 8 ranks, 30 s on more."""
    return [
        _of_row(row, share, 10.0 if row.profile.ranks <= 8 else 30.0)
        for row in load_rows()
        for share in SHARES
    ]


def below() -> list[Instance]:
    """Twelve rows where less than P microbatches fit in memory, down to one alone.

    20 s on 8 ranks, 30 s on more.
    """
    found = []
    for row in load_rows():
        least = smallest_limit(Problem.linear(row.profile, row.microbatches))[0]
        shares = [least / row.limit(1.0), *BELOW]
        seconds = 20.0 if row.profile.ranks <= 8 else 30.0
        found += [_of_row(row, share, seconds) for share in sorted(shares)]
    return found


def unequal_stages() -> list[Instance]:
    """Seeded instances of each kind of inequality."""
    return [
        _of_kind(kind, seed, unequal(kind, seed), 20.0) for kind in KINDS for seed in range(SEEDS)
    ]


def odd_limits() -> list[Instance]:
    """Unequal stages at limits below P x M_B and at crooked ones, by turns for each objective."""
    return [
        _of_kind(kind, seed, unequal(kind, seed, _objective(seed), shares=ODD_SHARES), 20.0)
        for kind in KINDS
        for seed in range(8)
    ]


def small() -> list[Instance]:
    """Up to 4 ranks and 8 microbatches, objectives by turns, each by both exact backends."""
    found = []
    for kind in KINDS:
        for seed in range(8):
            shares = (*ODD_SHARES, 1.0, 1.5, 2.0)
            problem = unequal(kind, seed, _objective(seed), (4, 8), shares)
            found += [_of_kind(kind, seed, problem, 5.0, name) for name in ("cp-sat", "milp")]
    return found


def scale() -> list[Instance]:
    """The 6.2B profile on many ranks: 196,608 and 786,432 ops."""
    row = next(row for row in load_rows() if str(row) == "6.2B-24")
    found = []
    for ranks, microbatches in SCALE:
        stages = row.profile.stages[:1] * ranks
        profile = Profile(stages, ranks, row.profile.t_comm, name=f"scale-{ranks}")
        long = Row(profile.name, profile, microbatches, 1, {})
        for share in (1.0, 1.5, 2.0):
            problem = Problem.linear(profile, microbatches, long.limit(share))
            name = f"{ranks}x{microbatches}@{share:g}"
            found.append(Instance(name, f"{ranks}x{microbatches}", problem, 55.0, share=share))
    return found


def makespan() -> list[Instance]:
    """The instances of table 5 and some of unequal stages, with an optimizer barrier."""
    rows = [
        _of_row(row, share, 20.0, Objective.MAKESPAN)
        for row in load_rows()
        for share in (1, 1.5, 2)
    ]
    seeded = [
        _of_kind(kind, seed, unequal(kind, seed, Objective.MAKESPAN), 20.0)
        for kind in KINDS
        for seed in range(8)
    ]
    return rows + seeded


SETS: dict[str, Callable[[], list[Instance]]] = {
    "table5": table5,
    "below": below,
    "unequal": unequal_stages,
    "odd": odd_limits,
    "small": small,
    "makespan": makespan,
    "scale": scale,
}


@dataclass(frozen=True, slots=True)
class Target:
    """Requirements of a set: the least part of its cells optimal, the most that gaps may be,
    seconds at most as allowed (but for a tenth), the most bytes of memory."""

    words: str
    optimal: float = 0.0
    median: float = inf
    nearly_all: float = inf
    worst: float = inf
    on_time: bool = False
    memory: float = inf


_LESS = "models at memory limits below P x M_B"
TARGETS = {
    "table5": Target("Table 5's models at memory limits of 1 to 2.5 times P x M_B", 68 / 72,
                     worst=0.001, on_time=True),
    "below": Target(f"Table 5's {_LESS}", median=0.02, worst=0.05),
    "unequal": Target("Unequal stages or links", median=0.002, nearly_all=0.01),
    "odd": Target("Unequal stages or links, odd limits below P x M_B", median=0.02, worst=0.05),
    "small": Target("At most 4 ranks and 8 microbatches, by CP-SAT and by MILP", 1.0, on_time=True),
    "makespan": Target("Table 5's models and unequal ones, the makespan as cost", median=0.01),
    "scale": Target("64 and 256 ranks, 1,024 microbatches", worst=0.01, on_time=True, memory=4e9),
}  # fmt: skip
"""The sets by name, and what is expected of each."""
USUAL = ("table5", "below", "small", "scale")
TIME, MIB = 1.2, 2**20
"""How far seconds may be above the limit of the solve, relative; bytes."""


def _part(name: str) -> str:
    return f"frontier {name}"


def cases(size: Size) -> Iterator[Case]:
    for name, make in SETS.items():
        if size == "large" or name in USUAL[: 1 if size == "small" else None]:
            for one in make():
                if size != "small" or one.row.endswith("-24"):
                    given = {"instance": one}
                    yield Case(_part(name), one.name, given, timed=True, fresh=True)


def measure(case: Case) -> Figures:
    """The figures of one solve: seconds and peak memory are those of ``optimize`` only.

    ``cpu_seconds``, those of all threads and of CBC, shows whether others used the machine too.
    """
    one: Instance = case.given["instance"]
    begin, computed = perf_counter(), _cpu_seconds()
    schedule = solve(one.problem, solver=one.solver, time_limit=one.time_limit)
    seconds, computed = perf_counter() - begin, _cpu_seconds() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "settings": {"time_limit": one.time_limit, "seed": 0},
        "row": one.row,
        "share": one.share,
        "published": one.published,
        **figures(schedule),
        "seconds": seconds,
        "cpu_seconds": computed,
        "peak_rss": peak,
        "violations": len(violations(schedule)),
    }


def _cpu_seconds() -> float:
    """CPU time of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def figures(schedule: Schedule) -> Figures:
    problem, timing, report = schedule.problem, schedule.known_timing, schedule.known_report
    cost = timing.cost(problem.objective)
    bound = report.known_bound
    return {
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "memory_limit": problem.memory_limit[0],
        "cost": cost,
        "lower_bound": bound,
        "gap": max(0.0, (cost - bound) / cost),
        "bubble": timing.bubble_rate(problem.objective),
        "bound_bubble": 1.0 - timing.work / (problem.ranks * bound),
        "bound_name": report.bound,
        "status": report.status.value,
        "family": report.family,
    }


def judge(rows: Rows) -> Iterator[Claim]:
    for name, target in TARGETS.items():
        if own := of_part(rows, _part(name)):
            yield _judged(name, own, target)
            if any(row["published"] is not None for row in own):
                yield _beside(name, [row for row in own if row["published"] is not None])
    if own := of_part(rows, _part("small")):
        apart = _apart(own)
        words = f"CP-SAT and MILP prove different optima of {apart} small instances."
        yield Claim(_part("small"), words, not apart)


def _judged(name: str, rows: Rows, target: Target) -> Claim:
    gaps = [row["gap"] for row in rows]
    optimal = sum(row["status"] == "optimal" for row in rows)
    median, nearly_all = float(np.median(gaps)), float(np.percentile(gaps, 95))
    most = max(row["seconds"] for row in rows)
    words = (
        f"{target.words}: {optimal} of {len(rows)} schedules are proven optimal, in at most "
        f"{most:.1f} s each"
    )
    if optimal < len(rows):
        words += f"; gaps: median {median:.2%}, 95th percentile {nearly_all:.2%}, worst "
        words += f"{max(gaps):.2%}"
    words += "."
    good = optimal >= target.optimal * len(rows) and max(gaps) <= target.worst
    good = good and median <= target.median and nearly_all <= target.nearly_all
    good = good and not any(row["violations"] for row in rows)
    good = good and max(row["peak_rss"] for row in rows) <= target.memory
    if target.on_time:
        good = good and all(r["seconds"] <= TIME * r["settings"]["time_limit"] for r in rows)
    return Claim(_part(name), words, good, f"frontier-{name}")


def _beside(name: str, rows: Rows) -> Claim:
    better = sum(round(row["bubble"], 4) < row["published"] for row in rows)
    worse = sum(round(row["bubble"], 4) > row["published"] for row in rows)
    words = (
        f"Of {len(rows)} bubbles of the published heuristic at these limits {better} are "
        f"improved, {len(rows) - better - worse} met and {worse} missed."
    )
    return Claim(_part(name), words, not worse)


def _apart(rows: Rows) -> int:
    costs: dict[str, list[float]] = {}
    for row in rows:
        if row["status"] == "optimal":
            costs.setdefault(row["case"].split(":")[0], []).append(row["cost"])
    return sum(max(found) > min(found) * (1 + 1e-6) for found in costs.values())


def _row_of(row: Figures) -> object:
    return row["row"]


def _gap_of(choose: Callable[[list[float]], object]) -> Callable[[list[Figures]], object]:
    return lambda rows: choose([row["gap"] for row in rows])


_SUMMARY = Table(
    [
        Column("row or kind", "row"),
        Column("instances", len),
        Column("optimal", lambda rows: sum(row["status"] == "optimal" for row in rows)),
        Column("median gap", _gap_of(np.median), ".2%"),
        Column("worst gap", _gap_of(max), ".2%"),
        Column("most s", lambda rows: max(row["seconds"] for row in rows), ".1f"),
        Column("most MiB", lambda rows: max(row["peak_rss"] for row in rows) / MIB, ".0f"),
    ],
    by=_row_of,
    total=True,
)
columns = {_part(name): _SUMMARY for name in TARGETS}


def _objective(seed: int) -> Objective:
    return Objective.MAKESPAN if seed % 2 else Objective.PERIOD


def _of_kind(
    kind: str, seed: int, problem: Problem, time_limit: float, solver: str = "auto"
) -> Instance:
    share = problem.memory_limit[0] / (problem.ranks * M_B)
    name = f"{kind}-{seed}" + (f":{solver}" if solver != "auto" else "")
    return Instance(name, kind, problem, time_limit, solver, share)


def _of_row(
    row: Row, share: float, time_limit: float, objective: Objective = Objective.PERIOD
) -> Instance:
    problem = Problem.linear(row.profile, row.microbatches, row.limit(share), objective)
    known = published(row, share) if objective is Objective.PERIOD else None
    return Instance(
        f"{row}@{share:.4g}", str(row), problem, time_limit, share=share, published=known
    )
