"""The memory frontier: gaps for sets of instances with one stage per rank, and their targets.

Each instance is solved in a new process, so that it does not profit from caches of earlier ones,
and so that its peak memory can be measured. Times are those of the solver, in seconds.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from time import perf_counter, process_time

import numpy as np

from pipeloom import Objective, Problem, Profile, solve
from pipeloom.solver import smallest_limit

from .. import Case, Claim, Column, Rows, Size, Table, of_part, plain, violations
from .. import Row as Figures
from ..published.tables import Row, load_rows
from . import unequal

SHARES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
BELOW = (0.25, 0.5, 0.75)
SCALE = ((64, 1024), (256, 1024))
SEEDS = 40
"""The number of instances of each kind of unequal stages or links."""
TIME, MIB = 1.2, 2**20
"""The largest allowed ratio of a solve's time to its time limit, for ``on_time``; and the number of
bytes in a MiB."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem, and the time limit in seconds within which it is to be solved.

    ``row``: the name of the group to which the instance belongs in the table: a row of table 5 of
    the Zero Bubble paper, or a kind of unequal stages or links. ``share``: the memory limit in
    units of P x M_B (if stages differ, with M_B of the profile that they are derived from).
    ``published``: the bubble rate of the paper's heuristic at this limit, if known.
    """

    name: str
    row: str
    problem: Problem
    time_limit: float
    share: float = 1.0
    published: float | None = None


def table5() -> Iterator[Instance]:
    """The twelve rows of table 5 at six memory limits. The time limit is 10 s on 8 ranks and 30 s
    on more."""
    for row, share in product(load_rows(), SHARES):
        yield _of_row(row, share, 10.0 if row.profile.ranks <= 8 else 30.0)


def below() -> Iterator[Instance]:
    """The twelve rows of table 5 at limits below P x M_B, down to that of one microbatch at a time.

    The time limit is 20 s on 8 ranks and 30 s on more.
    """
    for row in load_rows():
        least = smallest_limit(Problem.linear(row.profile, row.microbatches))[0]
        for share in sorted([least / row.limit(1.0), *BELOW]):
            yield _of_row(row, share, 20.0 if row.profile.ranks <= 8 else 30.0)


def kinds(
    seeds: int, objectives: Sequence[Objective], shares: Sequence[float] = unequal.SHARES
) -> Iterator[Instance]:
    """Random instances of each kind of unequal stages or links, with alternating objectives."""
    for kind, seed in product(unequal.KINDS, range(seeds)):
        objective = objectives[seed % len(objectives)]
        problem = unequal.unequal(kind, seed, objective, shares)
        share = problem.memory_limit[0] / (problem.ranks * unequal.M_B)
        yield Instance(f"{kind}-{seed}", kind, problem, 20.0, share)


def scale() -> Iterator[Instance]:
    """The 6.2B profile on 64 and 256 ranks with 1,024 microbatches: 196,608 and 786,432 F's, B's
    and W's."""
    row = next(row for row in load_rows() if str(row) == "6.2B-24")
    for (ranks, microbatches), share in product(SCALE, (1.0, 1.5, 2.0)):
        profile = Profile(row.profile.stages[:1] * ranks, ranks, row.profile.t_comm)
        problem = Problem.linear(profile, microbatches, share * ranks * profile.stages[0].m_b)
        group = f"{ranks}x{microbatches}"
        yield Instance(f"{group}@{share:g}", group, problem, 55.0, share=share)


def makespan() -> Iterator[Instance]:
    """The rows of table 5 and some instances with unequal stages or links, with the makespan as
    objective."""
    for row, share in product(load_rows(), (1, 1.5, 2)):
        yield _of_row(row, share, 20.0, Objective.MAKESPAN)
    yield from kinds(8, (Objective.MAKESPAN,))


@dataclass(frozen=True, slots=True)
class Target:
    """A set of instances, which ``make`` yields, and the requirements for it.

    ``words``: a description of the set. ``optimal``: the minimum fraction of schedules that are
    proven optimal. ``median``, ``nearly_all`` (95th percentile) and ``worst``: the largest gaps
    allowed. ``on_time``: the largest allowed ratio of a solve's time to its time limit.
    ``memory``: the largest peak memory allowed, in bytes.
    """

    make: Callable[[], Iterator[Instance]]
    words: str
    optimal: float = 0.0
    median: float = inf
    nearly_all: float = inf
    worst: float = inf
    on_time: float = inf
    memory: float = inf


TARGETS = {
    "table5": Target(table5, "Table 5's models at memory limits of 1 to 2.5 times P x M_B",
                     optimal=68 / 72, worst=0.001, on_time=TIME),
    "below": Target(below, "Table 5's models at memory limits below P x M_B",
                    median=0.02, worst=0.05),
    "unequal": Target(partial(kinds, SEEDS, (Objective.PERIOD,)), "Unequal stages or links",
                      median=0.002, nearly_all=0.01),
    "odd": Target(partial(kinds, 8, tuple(Objective), unequal.ODD_SHARES),
                  "Unequal stages or links, low or fractional limits", median=0.02, worst=0.05),
    "makespan": Target(makespan, "Table 5's models and unequal ones, for the makespan",
                       median=0.01),
    "scale": Target(scale, "64 and 256 ranks, 1,024 microbatches", worst=0.01, on_time=TIME,
                    memory=4e9),
}  # fmt: skip
"""The sets of instances, by name."""
USUAL = ("table5", "below", "scale")


def _part(name: str) -> str:
    return f"frontier {name}"


def cases(size: Size) -> Iterator[Case]:
    for name, target in TARGETS.items():
        if size == "large" or name in USUAL[: 1 if size == "small" else None]:
            for one in target.make():
                if size != "small" or one.row.endswith("-24"):
                    given = {"instance": one}
                    yield Case(_part(name), one.name, given, timed=True, fresh=True)


def measure(case: Case) -> Figures:
    """Solve one instance; time and peak memory include only the solver.

    ``cpu_seconds`` is summed over all threads. Compared with ``seconds``, it shows whether other
    programs used the machine.
    """
    one: Instance = case.given["instance"]
    begin, computed = perf_counter(), process_time()
    schedule = solve(one.problem, time_limit=one.time_limit)
    seconds, computed = perf_counter() - begin, process_time() - computed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    problem, timing, report = schedule.problem, schedule.known_timing, schedule.known_report
    cost, bound = timing.cost(problem.objective), report.known_bound
    return {
        "settings": {"time_limit": one.time_limit},
        "row": one.row,
        "share": one.share,
        "published": one.published,
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        "cost": cost,
        "lower_bound": bound,
        "gap": max(0.0, (cost - bound) / cost),
        "bubble": timing.bubble_rate(problem.objective),
        "bound_bubble": 1.0 - timing.work / (problem.ranks * bound),
        "bound_name": report.bound,
        "status": report.status.value,
        "seconds": seconds,
        "cpu_seconds": computed,
        "peak_rss": peak,
        "violations": len(violations(schedule)),
    }


def judge(rows: Rows) -> Iterator[Claim]:
    for name, target in TARGETS.items():
        if own := of_part(rows, _part(name)):
            yield _judged(name, own, target)
            if known := [row for row in own if row["published"] is not None]:
                yield _beside(name, known)


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
    good = good and all(r["seconds"] <= target.on_time * r["settings"]["time_limit"] for r in rows)
    return Claim(_part(name), words, good, f"frontier-{name}")


def _beside(name: str, rows: Rows) -> Claim:
    better = sum(round(row["bubble"], 4) < row["published"] for row in rows)
    worse = sum(round(row["bubble"], 4) > row["published"] for row in rows)
    words = (
        f"Compared with {len(rows)} bubbles of the published heuristic at these limits, ours are "
        f"smaller in {better} cases, equal in {len(rows) - better - worse}, larger in {worse}."
    )
    return Claim(_part(name), words, not worse)


def _gap_of(choose: Callable[[list[float]], object]) -> Callable[[list[Figures]], object]:
    return lambda rows: choose([row["gap"] for row in rows])


_SUMMARY = Table(
    *plain({"row or kind": "row"}),
    Column("instances", len),
    Column("optimal", lambda rows: sum(row["status"] == "optimal" for row in rows)),
    Column("median gap", _gap_of(np.median), ".2%"),
    Column("worst gap", _gap_of(max), ".2%"),
    Column("longest, s", lambda rows: max(row["seconds"] for row in rows), ".1f"),
    Column("peak MiB", lambda rows: max(row["peak_rss"] for row in rows) / MIB, ".0f"),
    by=lambda row: row["row"],
    total=True,
)
columns = {_part(name): _SUMMARY for name in TARGETS}


def _of_row(
    row: Row, share: float, time_limit: float, objective: Objective = Objective.PERIOD
) -> Instance:
    problem = Problem.linear(row.profile, row.microbatches, row.limit(share), objective)
    known = row.heuristic.get(share) if objective is Objective.PERIOD else None
    return Instance(f"{row}@{share:.4g}", str(row), problem, time_limit, share, known)
