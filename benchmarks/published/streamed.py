"""Optimized weight passing, compared with the published order.

Either there is no delay between ranks, or a hop takes half an F, with or without shared wires.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TypeAlias

from pipeloom import Objective, Placement, Problem, Profile, StageProfile, build_family, solve
from pipeloom.ir import Link, Links, Sharing, step_time

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain, violations
from ..table import digits

PART = "weipipe optimized"
WITHOUT_DELAY = tuple((ranks, share * ranks) for ranks in (4, 8, 16) for share in (2, 4))  # P, M
HOP = 0.5  # of a T_F of 1
BYTES = 1e6
MOST_BUBBLE, MOST_GAP = 0.04, 0.01
"""Targets for P = 16, M = 64 and hops of half an F: the largest bubble rate and the largest gap."""
WORK = 80.0
"""The work limit of each solve in millions of simulated ops, which makes results reproducible."""


BY_RATE, BY_LATENCY = Link(0.0, BYTES / (HOP * 1e6)), Link(HOP, 1e12)
"""Links on which the weights of a stage take ``HOP`` per hop, due to bandwidth or to latency."""
HOPS: Mapping[str, Links | None] = {
    "none, t_comm": None,
    **{shared.value: Links(BY_RATE, shared=shared) for shared in Sharing},
    "ring, all latency": Links(BY_LATENCY, shared=Sharing.RING),
}
"""Links on which a hop takes half an F, by how messages share wires."""
Setting: TypeAlias = tuple[int, int, float, str, Links | None, float | None]
"""P, M, the time of a hop, how messages share wires, the links, and the memory limit."""


def cases(size: Size) -> Iterator[Case]:
    shapes = WITHOUT_DELAY[: 1 if size == "small" else None]
    settings: list[Setting] = [(*shape, 0.0, "no delay", None, None) for shape in shapes]
    if size != "small":
        hops = product(HOPS.items(), (None, 16.0))
        settings += [(16, 64, HOP, name, links, limit) for (name, links), limit in hops]
    for given, objective in product(settings, Objective):
        ranks, count, hop, shared, _, limit = given
        words = f"{shared} limit {limit}" if hop else shared
        name = f"{ranks} x {count} {words} {objective.value}"
        yield Case(PART, name, {"setting": given, "objective": objective})


def measure(case: Case) -> Row:
    ranks, count, hop, shared, links, limit = case.given["setting"]
    objective = case.given["objective"]
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=BYTES)
    profile = Profile((stage,) * ranks, ranks, t_comm=hop, links=links)
    placement = Placement.round_robin(ranks)
    problem = Problem(profile, count, placement, profile.limit_from(limit), objective)
    schedule = solve(problem, work_limit=WORK)
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
        "bound": report.bound,
        "gap": (cost - report.known_bound) / cost,
        "schedule": report.family,
        "step": step_time(schedule),
        "published_step": step_time(published),
        "verified": violations(schedule) == [],
    }


def missed(row: Row) -> bool:
    """Whether a row misses its targets."""
    if not row["verified"]:
        return True
    if row["hop"] == 0.0:
        return bool(row["bubble"] > 1e-9)
    return bool(row["bubble"] > MOST_BUBBLE or row["gap"] > MOST_GAP)


def judge(rows: Rows) -> Iterator[Claim]:
    wrong = sum(map(missed, rows))
    words = (
        f"Optimized weight passing: {wrong} of {len(rows)} schedules are invalid, have a bubble "
        f"although there is no delay, or have a bubble above {MOST_BUBBLE:.0%} or a gap above "
        f"{MOST_GAP:.0%} with hops of half a forward."
    )
    yield Claim(PART, words, not wrong)
    for row in rows:
        if (row["shared"], row["objective"], row["memory_limit"]) == ("ring", "makespan", None):
            words = (
                f"On a ring of {row['ranks']} ranks with hops of half a forward, optimized weight "
                f"passing has a bubble of {row['bubble']:.2%} of the makespan (gap "
                f"{row['gap']:.2%}); WeiPipe's published order has {row['published']:.0%}."
            )
            yield Claim(PART, words, key="ring")


def _rate(key: str) -> Column:
    return Column(key, lambda row: digits(max(0.0, row[key])))


columns = {
    PART: Table(
        *plain({"P": "ranks", "M": "microbatches"}, "d"),
        *plain({"hop": "hop", "wires": "shared"}),
        *plain({"limit": "memory_limit"}, "g"),
        *plain("objective"),
        *map(_rate, ("published", "bubble")),
        *plain("gap", ".2%"),
        *plain("bound"),
        *plain({"step, published": "published_step", "step": "step"}, ".1f"),
        *plain("schedule"),
        where=lambda row: (row["ranks"], row["microbatches"]) == (16, 64),
    )
}
