"""A packing and its schedules: constructed, improved by the planned step, and scheduled.

::

    constructors -> a schedule of one packing: the pattern -> local search on packings -> a schedule
    a replica
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.construct.entry_orders import entry_orders
from pipeloom.solver.core.options import Order
from pipeloom.solver.core.tolerances import ROUNDING

from ..inputs.start import order_of
from ..solving.search import CachedSearch
from .balance import CONSTRUCTORS, Microbatches
from .search import by_replica, cost_of, improved
from .sequence_costs import SequenceCosts

PATTERN, PACKING, SCHEDULES = 0.25, 0.25, 0.5
"""The shares of time or work of each part."""


def constructed(
    costs: SequenceCosts, replicas: int, most: float, names: Sequence[str] = tuple(CONSTRUCTORS)
) -> dict[str, Microbatches]:
    """Packings of all replicas, one after the other, by the constructor.

    Raises InfeasibleError where none of them keeps the ``most`` tokens.
    """
    busiest = costs.of_ranks()
    row = busiest[int(busiest.sum(axis=1).argmax())]
    number = costs.problem.microbatches * replicas
    made = {name: CONSTRUCTORS[name](row, costs.lengths, number, most) for name in names}
    found = {name: _dealt(each, row, replicas) for name, each in made.items() if each is not None}
    if not found:
        raise InfeasibleError(
            f"no packing found of {counted(len(costs.lengths), 'sequence')} into "
            f"{counted(number, 'microbatch')} of at most {int(most)} tokens each"
        )
    return found


def tokens_that_fit(costs: SequenceCosts) -> float:
    """The most tokens of a microbatch that memory holds alone."""
    problem = costs.problem
    of_ranks = np.bincount(
        problem.owner[:, 0], [s.m_b for s in problem.profile.stages], problem.ranks
    )
    with np.errstate(divide="ignore"):
        limits = np.array(problem.memory_limit) * (1 + ROUNDING) * costs.tokens / of_ranks
    return float(limits.min())


def _dealt(packed: Microbatches, costs: FloatArray, replicas: int) -> Microbatches:
    """The microbatches replica by replica: dealt to and fro, the most expensive first."""
    if replicas == 1:
        return packed
    order = sorted(packed, key=lambda each: -float(costs[each].sum()))
    rows: list[Microbatches] = [[] for _ in range(replicas)]
    for at, each in enumerate(order):
        turn, place = divmod(at, replicas)
        rows[place if turn % 2 == 0 else replicas - 1 - place].append(each)
    return [each for row in rows for each in row]


def choose(
    costs: SequenceCosts,
    replicas: int,
    most: float,
    search: CachedSearch,
    start: Schedule | None = None,
) -> tuple[Microbatches, list[Schedule]]:
    """The best packing found, and a schedule of each replica; ``start``: one of other microbatches,
    whose order of ops is begun with.

    Raises InfeasibleError where nothing fits.
    """
    starts = list(constructed(costs, replicas, most).values())
    share = search.share(PATTERN / replicas)
    first = [costs.problem_of(part) for part in by_replica(starts[0], costs.problem.microbatches)]
    orders = _patterns(first, share, start)
    placed = [_placed(costs, packed, orders, start) for packed in starts]
    _, packed = min(placed, key=lambda pair: pair[0])
    budget = search.share(PACKING).options.budget
    seed = search.options.seed
    packed = improved(costs, packed, orders, most, seed=seed, budget=budget)
    return packed, scheduled(costs, packed, orders, search.share(SCHEDULES))


def scheduled(
    costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order], search: CachedSearch
) -> list[Schedule]:
    """A schedule of each replica, from its order; they share the time or the work."""
    share = search.share(1 / len(orders))
    parts = by_replica(packed, costs.problem.microbatches)
    problems = (costs.problem_of(part) for part in parts)
    return [
        share.solve(problem, start=order) for problem, order in zip(problems, orders, strict=True)
    ]


def _patterns(
    problems: Sequence[Problem], search: CachedSearch, start: Schedule | None
) -> list[Order]:
    """An order of ops for each replica."""
    if start is not None:
        return [order_of(start, problems[0])] * len(problems)
    return [search.run(problem).order for problem in problems]


def _placed(
    costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order], start: Schedule | None
) -> tuple[float, Microbatches]:
    """The cost, and the microbatches of each replica at the places where they cost least."""
    found: Microbatches = []
    dearest = 0.0
    for part, order in zip(by_replica(packed, costs.problem.microbatches), orders, strict=True):
        rows = [[part[i] for i in entry] for entry in _entries(costs.problem_of(part), start)]
        values = [cost_of(costs, row, [order]) for row in rows]
        dearest = max(dearest, min(values))
        found += rows[int(np.argmin(values))]
    return dearest, found


def _entries(problem: Problem, start: Schedule | None) -> Iterator[IntArray]:
    """Which microbatch takes each place: as :func:`entry_orders`, and by its length that of
    ``start`` with as many longer ones."""
    yield from entry_orders(problem)
    if start is not None:
        old = np.argsort(np.argsort(_lasting(start.problem), kind="stable"), kind="stable")
        yield np.argsort(_lasting(problem), kind="stable")[old]


def _lasting(problem: Problem) -> FloatArray:
    """(M,): how long all ops of each microbatch take."""
    stages = problem.profile.stages
    return np.array(
        [
            sum(one.t_f + one.t_b + one.t_w for one in (stage.at(j) for stage in stages))
            for j in range(problem.microbatches)
        ]
    )
