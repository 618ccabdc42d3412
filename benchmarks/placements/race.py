"""The instances, and one cell: what is found for each placement alone and by auto."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.problem import Problem
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule
from pipeloom.ir.schedule_format import dump_schedule
from pipeloom.ir.verify import verify_schedule
from pipeloom.solver.placements import best_placement, cost_of, placements
from pipeloom.solver.solve import Solving, optimize

from ..frontier.unequal import (
    M_B,
    M_W,
    T_B,
    T_COMM,
    T_F,
    T_W,
    Kind,
    heavy_ends,
    slow_link,
    times,
)
from ..table8.optimized import SHARES as SWEEP
from ..table8.rows import Row, load_rows

SHARES = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Memory limits, as multiples of P x M_B: of what P microbatches hold on a rank, were all stages as the largest."""
TOLERANCE = 5e-4
"""By how much auto may be above the best single placement where both are cut off by the clock."""


@dataclass(frozen=True, slots=True)
class Case:
    """``profile`` has one stage a rank, which placements of several cut, or several."""

    name: str
    profile: Profile
    microbatches: int
    shares: tuple[float, ...] = SHARES

    def limit(self, share: float) -> float:
        return share * self.profile.num_stages * max(stage.m_b for stage in self.profile.stages)


@dataclass(frozen=True, slots=True)
class Budget:
    """``seconds`` for auto in all and for each placement alone; with ``work``, that much for each."""

    seconds: float
    work: float | None = None

    def alone(self, problem: Problem) -> Schedule:
        return optimize(problem, time_limit=self.seconds, work_limit=self.work)

    def search(self, problem: Problem, _: str) -> Solving:
        return Solving.of(problem, work_limit=self.work)


def _case(name: str, kind: Kind, ranks: int, seed: int) -> Case:
    stages, delays = kind(ranks, np.random.default_rng(seed))
    t_comm = delays if isinstance(delays, float) else tuple(map(tuple, delays.tolist()))
    return Case(name, Profile(stages, ranks, t_comm), 3 * ranks)


def _table8(row: Row) -> Case:
    """The row of table 8 whose sweep is recorded there: two chunks a rank."""
    profile = Profile((row.chunk,) * 2 * row.ranks, row.ranks, row.t_comm)
    return Case(row.model, profile, row.microbatches, SWEEP)


CASES = (
    Case("equal", Profile((StageProfile(T_F, T_B, T_W, M_B, M_W),) * 8, 8, T_COMM), 24),
    _case("times +-20 %", times, 5, 1),
    _case("heavy ends", heavy_ends, 4, 2),
    _case("slow link", slow_link, 6, 3),
    _table8(load_rows()[0]),
)


def cell(case: Case, share: float, budget: Budget) -> dict[str, Any]:
    """Costs by placement, None where it does not fit, and auto's cost and choice."""
    alone: dict[str, float | None] = {}
    violations: list[str] = []
    for profile, placement in placements(case.profile):
        limit = (case.limit(share),) * profile.ranks
        try:
            found = budget.alone(Problem(profile, case.microbatches, placement, limit))
        except InfeasibleError:
            alone[placement.name] = None
            continue
        alone[placement.name] = cost_of(found)
        violations += verify_schedule(dump_schedule(found))
    chosen = best_placement(
        case.profile,
        case.microbatches,
        budget.search,
        seconds=budget.seconds if budget.work is None else math.inf,
        memory_limit=case.limit(share),
    )
    return {
        "case": case.name,
        "ranks": case.profile.ranks,
        "microbatches": case.microbatches,
        "share": share,
        "alone": alone,
        "auto": None if chosen.best is None else cost_of(chosen.best),
        "choice": chosen.tried[0].name,
        "bound": chosen.bound,
        "violations": violations,
    }


def excess(cell: dict[str, Any]) -> float | None:
    """How much auto's cost is above that of the best single placement, relative; None where none fits."""
    costs = [cost for cost in cell["alone"].values() if cost is not None]
    return None if not costs else float(cell["auto"] / min(costs) - 1)


def above(cell: dict[str, Any], budget: Budget) -> bool:
    """Whether a placement by itself is better, or a schedule wrong."""
    over = excess(cell)
    most = TOLERANCE if budget.work is None else 1e-6
    return bool(cell["violations"]) or (over is not None and over > most)


def table(cells: list[dict[str, Any]]) -> list[str]:
    """A Markdown table: costs over the bound on all placements, "-" where one does not fit."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["alone"]))
    lines = [f"| stages | P | M | memory / P M_B | {' | '.join(names)} | auto | its choice |"]
    lines.append("| --- " * (6 + len(names)) + "|")
    for cell in cells:
        costs = [_ratio(cell["alone"].get(name), cell["bound"]) for name in names]
        lines.append(
            f"| {cell['case']} | {cell['ranks']} | {cell['microbatches']} | {cell['share']:g} "
            f"| {' | '.join(costs)} | {_ratio(cell['auto'], cell['bound'])} | {cell['choice']} |"
        )
    return lines


def _ratio(cost: float | None, bound: float | None) -> str:
    return "-" if cost is None or not bound else f"{cost / bound:.4f}"
