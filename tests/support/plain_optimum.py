"""The optimum of a tiny instance in plain Python: every order of every rank, timed op by op.

Nothing of the project is imported: a profile is its JSON, and each figure a list of one number a
microbatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TypeAlias

Stage: TypeAlias = Mapping[str, list[float]]
Op: TypeAlias = tuple[str, int, int]
"""Kind, stage, microbatch."""


def plain_optimum(
    stages: Sequence[Stage], owner: Sequence[int], limit: float, *, makespan: bool
) -> float:
    """The least cost of all schedules of F's, B's and W's; infinite where memory admits none.

    ``activation_bytes`` of a stage takes one unit of time for each million, there and back.
    """
    number = len(stages[0]["t_f"])
    rows = []
    for rank in range(max(owner) + 1):
        own = [(s, j) for s, r in enumerate(owner) if r == rank for j in range(number)]
        orders = _orders(own, (0,) * len(own))
        rows.append([row for row in orders if _fits(row, stages, limit)])
    costs = (_cost(row, stages, owner, makespan=makespan) for row in product(*rows))
    return min(costs, default=math.inf)


def _orders(pairs: Sequence[tuple[int, int]], done: tuple[int, ...]) -> Iterator[list[Op]]:
    """All orders in which F comes before B and B before W of each (stage, microbatch)."""
    if all(steps == 3 for steps in done):
        yield []
    for at, steps in enumerate(done):
        if steps < 3:
            after = (*done[:at], steps + 1, *done[at + 1 :])
            for rest in _orders(pairs, after):
                yield [("FBW"[steps], *pairs[at]), *rest]


def _fits(row: Sequence[Op], stages: Sequence[Stage], limit: float) -> bool:
    held = 0.0
    for kind, s, j in row:
        m_b, m_w = stages[s]["m_b"][j], stages[s]["m_w"][j]
        held += {"F": m_b, "B": m_w - m_b, "W": -m_w}[kind]
        if held > limit * (1 + 1e-9):
            return False
    return True


def _cost(
    rows: Sequence[Sequence[Op]], stages: Sequence[Stage], owner: Sequence[int], *, makespan: bool
) -> float:
    """The cost of one order of each rank; infinite where some op can never start."""
    ends: dict[Op, float] = {}
    at, clock, first = [0] * len(rows), [0.0] * len(rows), [math.inf] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                kind, s, j = row[at[rank]]
                before = {"F": s - 1, "B": s + 1, "W": -1}[kind]
                begin = clock[rank]
                if 0 <= before < len(stages):
                    if (kind, before, j) not in ends:
                        break
                    sent = stages[min(s, before)]["activation_bytes"][j]
                    delay = sent / 1e6 if owner[before] != rank else 0.0
                    begin = max(begin, ends[kind, before, j] + delay)
                first[rank] = min(first[rank], begin)
                time = stages[s][f"t_{kind.lower()}"][j]
                clock[rank] = ends[kind, s, j] = begin + time
                at[rank], moved = at[rank] + 1, True
    if sum(at) < sum(map(len, rows)):
        return math.inf
    if makespan:
        return max(clock) - min(first)
    return max(end - begin for begin, end in zip(first, clock, strict=True))
