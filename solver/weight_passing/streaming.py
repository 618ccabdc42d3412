"""The transfers of streamed weights for a given order of ops.

Every stage has an owner. A rank has a few buffers for the weights of stages that it does not own,
and prefetches missing ones (:mod:`.prefetch`). A *visit* of a stage is a sequence of successive ops
of it on a rank. The prefetches for the k-th visits of a stage on all ranks are served together, by
one of four routes. Direct: each rank gets a copy from the owner. On the other routes, copies go on
from rank to rank as soon as they arrive. One way: one copy up the ranks. Both ways: two copies,
each for half of the ranks. Fan: more copies, of which the first goes farthest. If the owner can
send only one message at a time in each direction, no other route reaches all ranks sooner than the
fan::

    direct     0 > 1, 0 > 2, ..., 0 > 6       both ways  0 > 1 > 2 > 3, 0 > 6 > 5 > 4
    one way    0 > 1 > 2 > 3 > 4 > 5 > 6      fan        0 > 2 > 3, 0 > 1, 0 > 5 > 4, 0 > 6

No op waits for the gradient accumulators D: a rank keeps its contribution to a stage's gradient
until a D of this stage leaves the rank. D's take the routes of the weights backwards. They do so
``collections`` times per iteration, each time with an equal part of each rank's contributions. More
collections are more traffic and less memory: the buffer of a D and the sum kept for it are needed
only from one collection to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from itertools import pairwise, zip_longest

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.ops import KIND_MASK, STAGE_MASK, STAGE_SHIFT, IntArray, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import OPTIMIZED, Report, Schedule, Transfer, TransferKind
from pipeloom.ir.model.transfers import delay_matrix, size

from ..core.methods import Method
from .link_priority import by_link_priority
from .prefetch import Prefetch, prefetches, visits


class Route(Enum):
    """A route on which a stage's weights get to several ranks, and its D's get back.

    A D is an accumulator of the stage's gradient. The module's docstring shows the routes.
    """

    DIRECT = "direct"
    ONE_WAY = "one way"
    BOTH_WAYS = "both ways"
    FAN = "fan"


@dataclass(frozen=True, slots=True)
class Streaming:
    """The parameters of the transfers.

    - ``buffers``: the number of each rank's buffers for the weights of stages that it does not own.
    - ``route``: the route of the weights.
    - ``collections``: how many times per iteration each rank sends its part of a stage's gradient
      (a D).
    - ``lead``: a stage that a rank has used in one of its last ``lead`` visits keeps its buffer if
      possible; a visit is a sequence of successive ops of one stage (:mod:`.prefetch`).
    - ``home``: the route of the D's; None means that of the weights.
    - ``opening``: for stages with a number below this, the first copies use the fan, whatever the
      route, because ranks have nothing else to do while they wait for these copies.
    """

    buffers: int = 2
    route: Route = Route.DIRECT
    collections: int = 1
    lead: int = 1
    home: Route | None = None
    opening: int = 0


def streamed(
    problem: Problem, order: Sequence[IntArray], plan: Streaming, owner: Sequence[int] | None = None
) -> Schedule:
    """Return the timed schedule of ``order`` with its transfers.

    ``order``: one array of packed ops per rank. ``plan``: the parameters of the transfers.
    ``owner``: the rank that owns each stage, by default :func:`default_owners`. Raises
    InvalidScheduleError if the schedule cannot run. That never happens with direct routes, and with
    the others only if ranks run their ops in different orders.
    """
    owner = default_owners(problem) if owner is None else owner
    clock = _OpTimes(problem, order)
    journeys = [*_weights(problem, order, plan, owner), *gradients(problem, order, plan, owner)]
    listed = sorted(leg for journey in journeys for leg in clock.ways(journey))
    transfers = tuple(leg.transfer for leg in listed)
    schedule = Schedule(
        problem, tuple(order), transfers, Report(problem.objective, OPTIMIZED, method=Method.STREAM)
    )
    return timed(by_link_priority(schedule, np.array([leg.latest for leg in listed])))


@dataclass(frozen=True, slots=True, order=True)
class _Leg:
    """A transfer, with its earliest and its latest start under the assumption that no op waits.

    With the latest start, the copy still arrives in time for all ops that need it.
    """

    earliest: float
    latest: float
    number: int  # position on the path of its copy
    transfer: Transfer = field(compare=False)


def default_owners(problem: Problem) -> tuple[int, ...]:
    """Return the owner of each stage, which is one of the ranks that run it.

    Greedy: stages in descending order of size, each to the rank that owns the fewest bytes so far;
    on ties to the one that owns the fewest stages; if there are still ties, to the first of these
    ranks in the cyclic order that begins with rank ``stage`` mod P.
    """
    profile, matrix = problem.profile, users(problem)
    sizes = [_bytes_kept(problem, stage) for stage in range(problem.stages)]
    bytes_, counts = np.zeros(profile.ranks), np.zeros(profile.ranks)
    owner = [0] * problem.stages
    for stage in sorted(range(problem.stages), key=lambda s: -sizes[s]):
        able = matrix[stage]
        rank = min(able, key=lambda r: (bytes_[r], counts[r], (r - stage) % profile.ranks))
        owner[stage] = rank
        bytes_[rank] += sizes[stage]
        counts[rank] += 1
    return tuple(owner)


def users(problem: Problem) -> list[list[int]]:
    """Return, for each stage, the ranks that run it, in ascending order."""
    return [np.unique(row).tolist() for row in problem.owner]


def _bytes_kept(problem: Problem, stage: int) -> float:
    optimizer = problem.profile.stages[stage].optimizer_bytes or 0.0
    return optimizer + sum(size(problem.profile, kind, stage) for kind in TransferKind)


class _OpTimes:
    """A table of when each op would start and end if no op waited."""

    def __init__(self, problem: Problem, order: Sequence[IntArray]) -> None:
        costs = Costs.of(problem)
        self._delays = cache(partial(delay_matrix, problem.profile))
        self._done = [np.concatenate([[0.0], np.cumsum(costs.of_ops(row))]) for row in order]

    def ways(self, journey: Sequence[Transfer]) -> Iterator[_Leg]:
        earliest, starts = 0.0, []
        for t in journey:
            earliest = max(earliest, self._at(t.source, t.after), self._at(t.target, t.room))
            starts.append(earliest)
        latest, ways = float("inf"), []
        for n, t in reversed(list(enumerate(journey))):
            latest = min(latest, self._at(t.target, t.before)) - self._delay(t)
            ways.append(_Leg(starts[n], latest, n, t))
        return reversed(ways)

    def _delay(self, t: Transfer) -> float:
        return float(self._delays(t.kind, t.stage)[t.source, t.target])

    def _at(self, rank: int, ops: int) -> float:
        return float(self._done[rank][ops])


def _weights(
    problem: Problem, order: Sequence[IntArray], plan: Streaming, owner: Sequence[int]
) -> Iterator[list[Transfer]]:
    wanted: dict[tuple[int, int], dict[int, Prefetch]] = defaultdict(dict)
    for rank, row in enumerate(order):
        foreign = [visit for visit in visits(row) if owner[visit.stage] != rank]
        for fetch in prefetches(foreign, plan.buffers, plan.lead):
            wanted[fetch.visit.stage, fetch.visit.number][rank] = fetch
    copies: dict[int, int] = defaultdict(int)
    for (stage, number), by_rank in sorted(wanted.items()):
        route = Route.FAN if number == 0 and stage < plan.opening else plan.route
        for path in _paths(by_rank, owner[stage], problem.ranks, route):
            yield [
                Transfer(
                    TransferKind.WEIGHT,
                    stage,
                    copies[stage],
                    source,
                    target,
                    after=0,
                    before=by_rank[target].visit.first,
                    room=by_rank[target].room,
                )
                for source, target in pairwise([owner[stage], *path])
            ]
            copies[stage] += 1


def gradients(
    problem: Problem, order: Sequence[IntArray], plan: Streaming, owner: Sequence[int]
) -> Iterator[list[Transfer]]:
    """Yield the path of each D, an accumulator of a stage's gradient, to the stage's owner.

    A path is a list of transfers, each from a rank to the next rank on the path. ``order``: one
    array of packed ops per rank. ``plan``: the parameters of the transfers. ``owner``: the rank
    that owns each stage.
    """
    parts = [_parts(row, plan.collections) for row in order]
    lengths = [len(row) for row in order]
    for stage in range(problem.stages):
        home, copy = owner[stage], 0
        for number in range(plan.collections):
            done = {
                r: ends[stage][number] for r, ends in enumerate(parts) if number < len(ends[stage])
            }
            adding = {r: end for r, end in done.items() if r != home}
            for path in _paths(adding, home, problem.ranks, plan.home or plan.route):
                yield [
                    Transfer(
                        TransferKind.GRADIENT,
                        stage,
                        copy,
                        source,
                        target,
                        after=done[source],
                        before=lengths[target],
                        # it needs a buffer from its last contribution on
                        room=max(0, done.get(target, lengths[target]) - 1),
                    )
                    for source, target in pairwise([*reversed(path), home])
                ]
                copy += 1


def _parts(order: IntArray, collections: int) -> dict[int, list[int]]:
    """Return when each part of a rank's contributions is complete, as a list for each stage.

    The entries are numbers of ops that the rank has run by then. ``order``: the packed ops of the
    rank. ``collections``: the number of equal parts into which the rank's contributions to a
    stage's gradient are split; empty parts are left out.
    """
    kind, stage = order & KIND_MASK, order >> STAGE_SHIFT & STAGE_MASK
    adds = (kind == OpKind.W) | (kind == OpKind.BW)
    found: dict[int, list[int]] = defaultdict(list)
    for here in np.unique(stage[adds]).tolist():
        positions = np.flatnonzero(adds & (stage == here))
        parts = np.array_split(positions, collections)
        found[here] = [int(part[-1]) + 1 for part in parts if len(part)]
    return found


def _paths(ranks: Iterable[int], owner: int, number: int, route: Route) -> list[list[int]]:
    """Return the paths on which copies go from the owner to ``ranks``.

    A path is a list of the ranks that a copy reaches, in order, without the owner. The paths are in
    the order in which their copies leave the owner. ``number``: the number of all ranks, P.
    """
    up = sorted(ranks, key=lambda rank: (rank - owner) % number)
    if route is Route.DIRECT:
        return [[rank] for rank in up]
    half = len(up) if route is Route.ONE_WAY else (len(up) + 1) // 2
    ways = [way for way in (up[:half], up[half:][::-1]) if way]
    if route is not Route.FAN:
        return ways
    fans = [_fan(way) for way in ways]
    return [part for parts in zip_longest(*fans) for part in parts if part]


def _fan(way: list[int]) -> list[list[int]]:
    """Cut ``way`` into parts of 1, 2, 3, ... ranks, and return the parts, the last one first."""
    parts: list[list[int]] = []
    while way:
        length = len(parts) + 1
        parts.append(way[:length])
        way = way[length:]
    return parts[::-1]
