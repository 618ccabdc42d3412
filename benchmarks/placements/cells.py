"""The instances, and one cell: what is found for each placement alone, again, and by auto."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.worker_threads import workers_abreast
from pipeloom.solver.optimize import Solving, optimize
from pipeloom.solver.placement.replication import why_one_way
from pipeloom.solver.placement.search import Chosen, best_placement, placements

from ..frontier.unequal import M_B, M_W, T_B, T_COMM, T_F, T_W, Kind, heavy_ends, slow_link, times
from ..markdown import markdown
from ..table8.optimized import SHARES as SWEEP
from ..table8.rows import Row, load_rows

SHARES = (0.5, 0.75, 1.0, 1.5, 2.0)
"""Memory limits, as multiples of P x M_B: of what P microbatches hold on a rank, were all stages as
the largest."""
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
    """``seconds`` for each placement, alone and within auto; with ``work``, that much for each."""

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


def singles(case: Case) -> Iterator[tuple[Profile, Placement]]:
    """The placements that auto tries, one by one."""
    yield from placements(case.profile)
    if why_one_way(case.profile, case.microbatches) is None:
        yield case.profile, Placement.bidirectional(case.profile.ranks)


def cell(case: Case, share: float, budget: Budget) -> dict[str, Any]:
    """Costs by placement, None where it does not fit, and auto's cost and choice.

    ``again``: the same placements with the same seeds once more, which shows what the clock alone
    changes; ``shared``: auto where all placements together have what each has alone. Both without a
    limit on work only.
    """
    violations: list[str] = []
    found = {"case": case.name, "ranks": case.profile.ranks, "microbatches": case.microbatches}
    found |= {"share": share, "alone": _alone(case, share, budget, violations)}
    began = monotonic()
    chosen = _auto(case, share, budget, each=None if budget.work else budget.seconds)
    found |= {
        "auto": _cost(chosen),
        "choice": chosen.tried[0].name,
        "bound": chosen.bound,
        "auto_seconds": round(monotonic() - began, 1),
    }
    if chosen.best is not None:
        violations += verify_schedule(dump_schedule(chosen.best))
    if budget.work is None:
        found["again"] = _alone(case, share, budget, violations)
        found["shared"] = _cost(_auto(case, share, budget, seconds=budget.seconds))
    return found | {"violations": violations}


def _alone(
    case: Case, share: float, budget: Budget, violations: list[str]
) -> dict[str, float | None]:
    costs: dict[str, float | None] = {}
    for profile, placement in singles(case):
        limit = (case.limit(share),) * profile.ranks
        try:
            found = budget.alone(Problem(profile, case.microbatches, placement, limit))
        except InfeasibleError:
            costs[placement.name] = None
            continue
        costs[placement.name] = iteration_time(found)
        violations += verify_schedule(dump_schedule(found))
    return costs


def _auto(
    case: Case, share: float, budget: Budget, seconds: float = math.inf, each: float | None = None
) -> Chosen:
    return best_placement(
        case.profile,
        case.microbatches,
        budget.search,
        seconds=seconds,
        each=each,
        memory_limit=case.limit(share),
        copies=2,
        abreast=workers_abreast(),
    )


def _cost(chosen: Chosen) -> float | None:
    return None if chosen.best is None else iteration_time(chosen.best)


def excess(cell: dict[str, Any], what: str = "auto") -> float | None:
    """How much a cost is above that of the best single placement, relative; None where none fits.

    ``what``: ``auto``, ``shared``, or ``again`` for the best placement of the second time.
    """
    found = cell[what]
    if what == "again":
        found = min((cost for cost in found.values() if cost is not None), default=None)
    costs = [cost for cost in cell["alone"].values() if cost is not None]
    return None if not costs else float(found / min(costs) - 1)


def above(cell: dict[str, Any], budget: Budget) -> bool:
    """Whether a placement by itself is better, or a schedule wrong."""
    over = excess(cell)
    most = TOLERANCE if budget.work is None else 1e-6
    return bool(cell["violations"]) or (over is not None and over > most)


def table(cells: list[dict[str, Any]]) -> list[str]:
    """A Markdown table: costs over the bound on all placements, "-" where one does not fit."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["alone"]))
    shared = ["shared"] if all("shared" in cell for cell in cells) else []
    heads = ["stages", "P", "M", "memory / P M_B", *names, "auto", "its choice", *shared]
    lines = []
    for cell in cells:
        costs = [_ratio(cell["alone"].get(name), cell["bound"]) for name in names]
        head = [cell["case"], str(cell["ranks"]), str(cell["microbatches"]), f"{cell['share']:g}"]
        found = [_ratio(cell["auto"], cell["bound"]), cell["choice"]]
        found += [_ratio(cell[what], cell["bound"]) for what in shared]
        lines.append([*head, *costs, *found])
    return markdown(heads, lines)


def _ratio(cost: float | None, bound: float | None) -> str:
    return "-" if cost is None or not bound else f"{cost / bound:.4f}"
