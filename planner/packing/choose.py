"""A packing and its schedules: constructed, improved by the planned step, and scheduled.

::

    constructors -> schedules of an even and an uneven packing: the patterns -> by each, a local
    search on packings, and schedules for a moment -> of the better one, a schedule a replica ->
    once more by that
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.ir.units import counted
from pipeloom.solver.construct.entry_orders import entry_orders
from pipeloom.solver.core.options import Order
from pipeloom.solver.core.tolerances import ROUNDING

from ..inputs.start import order_of
from ..solving.search import CachedSearch
from .balance import CONSTRUCTORS, Microbatches
from .search import by_replica, cost_of, improved
from .sequence_costs import SequenceCosts

PATTERN, SCHEDULES, AGAIN = 0.1, 0.55, (0.05, 0.025)
"""Shares of time or work: of all patterns, and as much each of local search by them and of the
schedules that it is judged by; of the schedules; of each further local search by these, and as much
of its schedules."""
PATTERNS = ("longest first", "sorted runs")
"""The constructors whose packings a pattern is made for: even microbatches, and uneven ones."""


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
    starts = constructed(costs, replicas, most)
    names = [name for name in PATTERNS if name in starts] or [next(iter(starts))]
    firsts = [starts[name] for name in (names if start is None else names[:1])]
    share = search.share(PATTERN / len(firsts))
    every, tracks = [*starts.values()], []
    for first in firsts:
        orders = _patterns(costs, first, share, start)
        tracks.append(_track(costs, every, orders, share, most=most, start=start))
    _, packed, orders = min(tracks, key=lambda track: track[0])
    found = scheduled(costs, packed, orders, search.share(SCHEDULES))
    for part in AGAIN:
        packed, found = _again(costs, packed, found, search.share(part), most)
    return packed, found


def _again(
    costs: SequenceCosts,
    packed: Microbatches,
    schedules: list[Schedule],
    search: CachedSearch,
    most: float,
) -> tuple[Microbatches, list[Schedule]]:
    """The packing, or a better one found from these schedules, with schedules found from them."""
    orders = [schedule.order for schedule in schedules]
    known = cost_of(costs, packed, orders)
    better = _improved(costs, packed, orders, most, search)
    if not cost_of(costs, better, orders) < known:
        better = packed
        if all(s.report is not None and s.report.status is Status.OPTIMAL for s in schedules):
            return packed, schedules
    found = scheduled(costs, better, orders, search)
    least = cost_of(costs, better, [schedule.order for schedule in found])
    return (better, found) if least < known else (packed, schedules)


def _track(
    costs: SequenceCosts,
    starts: Sequence[Microbatches],
    orders: Sequence[Order],
    search: CachedSearch,
    *,
    most: float,
    start: Schedule | None,
) -> tuple[float, Microbatches, Sequence[Order]]:
    """The local search by one pattern from the best of ``starts``: cost, packing, schedules for
    it."""
    _, packed = min((_placed(costs, each, orders, start) for each in starts), key=lambda p: p[0])
    packed = _improved(costs, packed, orders, most, search)
    orders = [schedule.order for schedule in scheduled(costs, packed, orders, search)]
    return cost_of(costs, packed, orders), packed, orders


def _improved(
    costs: SequenceCosts,
    packed: Microbatches,
    orders: Sequence[Order],
    most: float,
    search: CachedSearch,
) -> Microbatches:
    options = search.options
    return improved(
        costs, packed, orders, most,
        seed=options.seed, budget=options.budget, should_stop=options.should_stop,
    )  # fmt: skip


def scheduled(
    costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order | None], search: CachedSearch
) -> list[Schedule]:
    """A schedule of each replica, from its order if there is one; they share time or work."""
    share = search.share(1 / len(orders))
    parts = by_replica(packed, costs.problem.microbatches)
    problems = (costs.problem_of(part) for part in parts)
    return [
        share.solve(problem, start=order) for problem, order in zip(problems, orders, strict=True)
    ]


def _patterns(
    costs: SequenceCosts, packed: Microbatches, search: CachedSearch, start: Schedule | None
) -> Sequence[Order]:
    """An order of ops for each replica of a packing, or that of ``start``."""
    parts = by_replica(packed, costs.problem.microbatches)
    problems = [costs.problem_of(part) for part in parts]
    if start is not None:
        return [order_of(start, problems[0])] * len(problems)
    share = search.share(1 / len(problems))
    return [share.run(problem).order for problem in problems]


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
