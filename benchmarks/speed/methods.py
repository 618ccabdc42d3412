"""The time that methods of the search take, relative to the work that they are charged."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np

from pipeloom import build_family
from pipeloom.solver.bounds import work_bound
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.search.list_search import ListTuner
from pipeloom.solver.search.local_search import Annealer, FillingAnnealer, PairAnnealer

from .. import Case, Claim, Row, Rows, Size, Table, plain
from .simulator import unequal_profile

PART, MICROBATCHES, ROUNDS = "methods", 48, 20
METHODS = {"anneal": Annealer, "fill": FillingAnnealer, "pair": PairAnnealer, "list": ListTuner}
MOST_NS = 100.0
"""The longest time of a unit of work, which is what the simulator does for one op in 10 ns."""


def cases(size: Size) -> Iterator[Case]:
    for name in METHODS:
        yield Case(PART, name, timed=True)


def measure(case: Case) -> Row:
    """Time rounds of a method on a ZB-H1 schedule, after one in which its kernel is compiled."""
    schedule = build_family("zb-h1", unequal_profile(), MICROBATCHES)
    best = Incumbent(schedule.problem, work_bound(schedule.problem), SolveOptions(work_limit=1e6))
    best.offer(schedule.order, case.name)
    method = METHODS[case.name](schedule.problem, np.random.default_rng(0))
    method.round(best)
    used, begin = best.work.used, perf_counter()
    for _ in range(ROUNDS):
        method.round(best)
    return {"nanoseconds": (perf_counter() - begin) / (best.work.used - used) * 1e9}


def judge(rows: Rows) -> Iterator[Claim]:
    most = max(row["nanoseconds"] for row in rows)
    words = f"No method of the search takes more than {most:.0f} ns per unit of work."
    yield Claim(PART, words, most <= MOST_NS)


columns = {PART: Table(*plain({"method": "case", "ns per unit of work": "nanoseconds"}, ".1f"))}
