"""The instance sets of this benchmark, one function each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.solver.bounds.feasibility import smallest_limit

from ..published.table5 import Row, load_rows
from .published import published
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
