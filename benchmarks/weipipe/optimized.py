"""The optimizer beside the published order: no delay, and a hop of half an F, free or on shared
wires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeloom.ir.cost.steady_state.steady_state import step_time
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize

WITHOUT_DELAY = tuple((ranks, share * ranks) for ranks in (4, 8, 16) for share in (2, 4))  # P, M
HOP = 0.5  # of a T_F of 1
BYTES = 1e6
MOST_BUBBLE, MOST_GAP = 0.04, 0.01
"""Targets at P = 16, M = 64 and a hop of half an F."""
WORK = 80.0
"""Millions of simulated ops for each solve: the same figures on every run."""


def _hop(shared: Sharing, *, latency: bool = False) -> Links:
    """Links over which a stage takes ``HOP`` from rank to rank, by their bandwidth or their
    latency."""
    rate = BYTES / (HOP * 1e6)  # gigabytes a second
    link = Link(HOP, 1e12) if latency else Link(0.0, rate)
    return Links(link, shared=shared)


HOPS: Mapping[str, Links | None] = {
    "none, t_comm": None,
    "pairs": _hop(Sharing.PAIRS),
    "ports": _hop(Sharing.PORTS),
    "ring": _hop(Sharing.RING),
    "ring, all latency": _hop(Sharing.RING, latency=True),
}
"""What messages share at a hop of half an F."""


def measure() -> list[dict[str, Any]]:
    rows = [
        _row(ranks, count, objective) for ranks, count in WITHOUT_DELAY for objective in Objective
    ]
    rows += [
        _row(16, 64, objective, hop=HOP, shared=name, links=links, limit=limit)
        for name, links in HOPS.items()
        for limit in (None, 16.0)
        for objective in Objective
    ]
    return rows


def _row(
    ranks: int,
    count: int,
    objective: Objective,
    *,
    hop: float = 0.0,
    shared: str = "no delay",
    links: Links | None = None,
    limit: float | None = None,
) -> dict[str, Any]:
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=BYTES)
    profile = Profile((stage,) * ranks, ranks, t_comm=hop, links=links)
    placement = Placement.round_robin(ranks)
    problem = Problem(profile, count, placement, profile.limit_from(limit), objective)
    schedule = optimize(problem, work_limit=WORK)
    published = build_family("weipipe-interleave", profile, count, objective=objective)
    timing, report = schedule.known_timing, schedule.known_report
    cost = timing.cost(objective)
    return {
        "ranks": ranks,
        "microbatches": count,
        "hop": hop,
        "shared": shared,
        "memory_limit": limit,
        "objective": objective.value,
        "bubble": timing.bubble_rate(objective),
        "published": published.known_timing.bubble_rate(objective),
        "cost": cost,
        "lower_bound": report.known_bound,
        "bound": report.bound,
        "gap": (cost - report.known_bound) / cost,
        "status": report.status.value,
        "schedule": report.family,
        "step": step_time(schedule),
        "published_step": step_time(published),
        "seconds": report.solve_seconds,
        "verified": verify_schedule(dump_schedule(schedule)) == [],
    }


def missed(row: dict[str, Any]) -> bool:
    """Whether a row is not what it has to be."""
    if not row["verified"]:
        return True
    if row["hop"] == 0.0:
        return bool(row["bubble"] > 1e-9)
    return bool(row["bubble"] > MOST_BUBBLE or row["gap"] > MOST_GAP)
