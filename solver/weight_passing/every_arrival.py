"""The least makespan of few ops with streamed weights, over all that decides it.

Ranks wait for each other by the arrival of weights alone. So owners are tried, and ways of the
copies to the other ranks, and the orders in which they leave on the wires, transfer by transfer in
the order of their starts; what remains is each rank by itself (:class:`.one_rank.RankOrders`).
A branch ends where the weights of a stage come to a rank so late that what is left for it then, at
least all but the F's of the stages before, leads beyond the best makespan known.

D's are listed behind all weights, as no op waits for them. With up to three ranks nothing is left
out: a copy that came to a rank before it had to is of no use, and the first copies to come to two
ranks are two from the owner, or one by way of the other rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.ops import Op, pack
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Report, Schedule, Transfer, TransferKind
from pipeloom.ir.model.transfers import delay_matrix

from ..core.bound import Bound
from ..core.incumbent import Incumbent
from ..core.tolerances import ROUNDING
from .one_rank import RankOrders
from .streaming import Streaming, gradients

CELLS = 12  # (stage, microbatch) pairs at most
RANKS = 3  # for a proof
TRIES = 20_000  # transfers that are tried at most
TRY_OPS = 5_000.0  # simulated ops that one takes as long as
WORDS = "all owners, ways and orders of weights were searched, and all orders of ops"


def search_every_arrival(best: Incumbent) -> Schedule | None:
    """A better schedule than the best known, where there is one; raises the bound where all was
    searched. Nothing comes of it where the problem is not small."""
    if best.over() or not covers(best.problem):
        return None
    search = ArrivalSearch(best)
    found = search.run()
    if search.complete:
        best.raise_bound(Bound(search.least, "enumeration", WORDS))
    return found


def covers(problem: Problem) -> bool:
    """Whether the problem is small enough, every rank has microbatches, and these are alike."""
    users = np.bincount(problem.owner[0], minlength=problem.ranks)
    return (
        problem.objective is Objective.MAKESPAN
        and not problem.profile.unlike
        and problem.stages * problem.microbatches <= CELLS
        and bool((users > 0).all())
    )


@dataclass(frozen=True, slots=True)
class Leg:
    """One transfer of a stage's weights; ``copy``: of those that left its owner."""

    stage: int
    copy: int
    source: int
    target: int


class ArrivalSearch:
    """``least``: the makespan to be beaten, then the least; ``complete``: it is proven."""

    def __init__(self, best: Incumbent) -> None:
        self._best, problem = best, best.problem
        self._problem, self._ranks = problem, range(problem.ranks)
        self.least, self.complete, self._tries = best.cost * (1 - ROUNDING), False, 0
        self._found: tuple[tuple[int, ...], list[Leg], dict[tuple[int, int], float]] | None = None
        stages, links = range(problem.stages), problem.profile.links
        self._delays = [delay_matrix(problem.profile, TransferKind.WEIGHT, s) for s in stages]
        self._wires = {
            (a, b): () if links is None else links.wires(a, b, problem.ranks)
            for a in self._ranks
            for b in self._ranks
            if a != b
        }
        self._orders = [RankOrders(problem, rank) for rank in self._ranks]

    def run(self) -> Schedule | None:
        """The schedule of the least makespan, if it is less than what was to be beaten."""
        for owner in product(self._ranks, repeat=self._problem.stages):
            came = dict.fromkeys(enumerate(owner), 0.0)
            self._branch(owner, [], came, {}, 0.0)
            if self._over():
                break
        else:
            self.complete = self._problem.ranks <= RANKS
        return self._schedule(*self._found) if self._found else None

    def _over(self) -> bool:
        return self._tries > TRIES or self._best.exhausted

    def _branch(
        self,
        owner: tuple[int, ...],
        legs: list[Leg],
        came: dict[tuple[int, int], float],
        free: dict[str, float],
        now: float,
    ) -> None:
        """Goes on from ``legs``, of which the last began at ``now``."""
        if len(came) == len(owner) * self._problem.ranks:
            self._take(owner, legs, came)
            return
        for leg in self._next(owner, legs, came):
            wires = self._wires[leg.source, leg.target]
            start = max([came[leg.stage, leg.source], *(free.get(wire, 0.0) for wire in wires)])
            end = start + float(self._delays[leg.stage][leg.source, leg.target])
            if start < now or end + self._orders[leg.target].rest(leg.stage) >= self.least:
                continue
            self._tries += 1
            self._best.work.spend(TRY_OPS)
            if self._over():
                return
            there = {**came, (leg.stage, leg.target): end}
            self._branch(owner, [*legs, leg], there, {**free, **dict.fromkeys(wires, end)}, start)

    def _next(
        self, owner: tuple[int, ...], legs: list[Leg], came: dict[tuple[int, int], float]
    ) -> Iterator[Leg]:
        """The transfers that may follow: a copy leaves the owner, or goes on from where it is."""
        for stage, home in enumerate(owner):
            at = {leg.copy: leg.target for leg in legs if leg.stage == stage}
            for copy, source in [*at.items(), (len(at), home)]:
                for target in self._ranks:
                    if (stage, target) not in came:
                        yield Leg(stage, copy, source, target)

    def _take(
        self, owner: tuple[int, ...], legs: list[Leg], came: dict[tuple[int, int], float]
    ) -> None:
        ends = 0.0
        for rank, orders in enumerate(self._orders):
            arrived = tuple(came[stage, rank] for stage in range(len(owner)))
            ends = max(ends, orders.end(arrived, self.least))
            if ends >= self.least:
                return
        self.least, self._found = ends, (owner, legs, came)

    def _schedule(
        self, owner: tuple[int, ...], legs: list[Leg], came: dict[tuple[int, int], float]
    ) -> Schedule:
        stages, kind = range(len(owner)), TransferKind.WEIGHT
        ops = [
            orders.order(tuple(came[stage, rank] for stage in stages))
            for rank, orders in enumerate(self._orders)
        ]
        weights = [
            Transfer(
                kind,
                leg.stage,
                leg.copy,
                leg.source,
                leg.target,
                after=0,
                before=_first(ops[leg.target], leg.stage),
            )
            for leg in legs
        ]
        rows = tuple(map(pack, ops))
        home = chain.from_iterable(gradients(self._problem, rows, Streaming(), owner))
        report = Report(self._problem.objective, "enumeration")
        return timed(Schedule(self._problem, rows, (*weights, *home), report))


def _first(ops: Sequence[Op], stage: int) -> int:
    """The position of the first op of ``stage``."""
    return next(i for i, op in enumerate(ops) if op.stage == stage)
