"""The problem as variables, constraints and an objective, once for every exact backend.

Variables
    ``start[i]``, the start of op i; and for any two ops of one rank whose order nothing fixes,
    whether the first runs before the second.
Constraints
    *dependencies*: ``start[after] >= end[before] + delay``.
    *no overlap*: of two ops of a rank, the later starts at the earlier one's end or after it;
    which is the later is fixed for some (``adjacent``) and open for others (``open_pairs``).
    *memory*: at the start of every F, what the ops before it on its rank have left held, and its
    own M_B, are within the rank's limit. Memory grows at F's alone, so this is enough.
    *spans*: no rank's span (objective: period), or no end (makespan), exceeds the cost.
    *packing* (follows from the others; it lifts relaxations): an op starts no earlier after its
    rank's first than the ops before it take, and ends no later before the rank's span does than
    the ops after it take.
    *earliest* (period only): ops before a rank's first B start no later than they must.
Objective
    the cost, minimised. B and W are separate ops: a fused BW is never better, because B, then W at
    once, sends the input gradient earlier, gives memory back no later and moves no first start.

Activation passing only, with any number of stages per rank. Three facts keep it small and exact.

**Microbatches are positions.** The k-th F (B, W) of a stage to run is called F(s, k) (B(s, k),
W(s, k)), which fixes the order within each stage and kind. Take any valid schedule and rename its
ops so, keeping all times. Every dependency still holds: when the k-th F of stage s starts, k + 1
microbatches have passed F(s-1, .), so the k-th of those to end has ended a delay ago; likewise B
after the next stage's B, B after F, and W after B. Durations, delays and sizes depend on the stage
alone, so nothing else changes. This holds with several stages per rank, stage by stage.

**First starts.** Renaming keeps times, but the contract's times are the earliest of an *order*,
and the period counts from each rank's first start. For the makespan earlier is only better. For
the period it is not: a rank whose first op is F of the second microbatch to come starts later, and
may span less (``tests/unit/support/test_oracle.py`` holds an instance). What the contract allows is
that every op before a rank's first B, all of them F's, starts exactly when the op before it on the
rank ends or some F of the stage before arrives: *earliest*. Conversely, times that obey it belong
to an order of real microbatches (:func:`to_schedule` names them): sort a stage's F's by start;
those that start on an arrival take the microbatch that arrives just then, all others the first that
is there. As the sets that have arrived only grow, none runs short. First starts depend on F's
alone, because a B anywhere comes after an F on every rank. So the optimum here is the optimum over
all valid schedules, other microbatches first included.

**First and last ops.** A rank's first op is the first F of its lowest stage, which all its other
ops come after; its last is the last W of one of its stages.

Schedules of real microbatches as solutions of the formulation, which has positions, and back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, permutations
from typing import TypeVar

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.ops import FloatArray, IntArray, Op, OpKind, pack
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Report, Schedule

from ..core.schedule_cost import objective_cost, within_memory
from .precedence import KINDS, BoolArray, Dependency, dependencies_of, index, precedes_of

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """At the start of F ``op``: ``held`` run before it for certain, ``open`` may."""

    op: int
    rank: int
    held: tuple[int, ...]
    open: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Earliest:
    """Op ``op`` starts when one of ``after``, ops with delays, has ended and its delay has passed,
    unless one of ``unless`` runs before ``op``."""

    op: int
    unless: tuple[int, ...]
    after: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Formulation:
    """Ops by index: ``(kind * S + stage) * M + k`` for the k-th of its kind and stage.

    ``rank_of``, ``duration``: (N,). ``precedes``: (N, N), orders that hold in every solution.
    """

    problem: Problem
    costs: Costs
    ops: tuple[Op, ...]
    rank_of: tuple[int, ...]
    duration: FloatArray
    dependencies: tuple[Dependency, ...]
    precedes: BoolArray

    @classmethod
    def of(cls, problem: Problem) -> Formulation:
        """Raises InputError for other passing than activations'."""
        if problem.placement.passing is not Passing.ACTIVATIONS:
            raise InputError(
                "exact solvers place stages on ranks: passing is "
                f"{problem.placement.passing.value}, expected activations"
            )
        costs = Costs.of(problem)
        stages, microbatches = costs.owner.shape
        ops = tuple(Op(k, s, j) for k in KINDS for s in range(stages) for j in range(microbatches))
        dependencies = dependencies_of(costs)
        return cls(
            problem,
            costs,
            ops,
            tuple(int(costs.owner[op.stage, 0]) for op in ops),
            np.array([costs.durations[op.kind, op.stage] for op in ops]),
            dependencies,
            precedes_of(problem, costs, dependencies),
        )

    def index(self, kind: OpKind, stage: int, k: int) -> int:
        return index(self.costs, kind, stage, k)

    @cached_property
    def rank_ops(self) -> tuple[tuple[int, ...], ...]:
        of = self.rank_of
        return tuple(
            tuple(i for i in range(len(of)) if of[i] == r) for r in range(self.problem.ranks)
        )

    @cached_property
    def open_pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of ops of one rank whose order is to be decided."""
        fixed = self.precedes | self.precedes.T
        return tuple(
            (a, b) for ops in self.rank_ops for a in ops for b in ops if a < b and not fixed[a, b]
        )

    @cached_property
    def adjacent(self) -> tuple[tuple[int, int], ...]:
        """The pairs of ops of one rank in a fixed order, less those that follow from others."""
        found = []
        for ops in self.rank_ops:
            fixed = self.precedes[np.ix_(ops, ops)].astype(np.int64)
            pairs = np.argwhere(fixed & (fixed @ fixed == 0))
            found += [(ops[a], ops[b]) for a, b in pairs.tolist()]
        return tuple(found)

    def ordered(self, first: Mapping[tuple[int, int], bool]) -> tuple[tuple[int, ...], ...]:
        """Each rank's ops in order, given of each open pair whether its first op runs first."""
        before = np.zeros(len(self.ops), dtype=np.int64)
        for ops in self.rank_ops:
            before[list(ops)] = self.precedes[np.ix_(ops, ops)].sum(axis=0)
        for (a, b), leads in first.items():
            before[b if leads else a] += 1
        return tuple(tuple(sorted(ops, key=before.__getitem__)) for ops in self.rank_ops)

    @cached_property
    def implications(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """Pairs ``(a, b), (c, d)``: if a runs before b, then c runs before d.

        All that follow from one open order and one of ``adjacent``; no constraint needs them, but
        solvers see further with them.
        """
        after: dict[int, list[int]] = {}
        for a, b in self.adjacent:
            after.setdefault(a, []).append(b)
        both = [pair for a, b in self.open_pairs for pair in ((a, b), (b, a))]
        fixed = self.precedes | self.precedes.T
        return tuple(((a, b), (a, c)) for a, b in both for c in after.get(b, ()) if not fixed[a, c])

    def cycles(self, instant: Collection[int]) -> Iterator[tuple[int, int, int]]:
        """The ops a, b, c of one rank that could run a before b before c before a, all at once.

        Times make orders transitive but for ops that take none: those of ``instant``.
        """
        fixed = self.precedes | self.precedes.T
        for ops in self.rank_ops:
            for a, b, c in permutations([i for i in ops if i in instant], 3):
                if a == min(a, b, c) and not (fixed[a, b] and fixed[b, c] and fixed[c, a]):
                    yield a, b, c

    @cached_property
    def heads(self) -> FloatArray:
        """The earliest start of each op, by the ops that must come before it, shape (N,)."""
        head = np.zeros(len(self.ops))
        for i in self._sequence:
            for j, gap in self._followers[i]:
                head[j] = max(head[j], head[i] + gap)
        return head

    @cached_property
    def tails(self) -> FloatArray:
        """The least time from each op's start to the end of all it must come before, (N,)."""
        tail = self.duration.copy()
        for i in reversed(self._sequence):
            for j, gap in self._followers[i]:
                tail[i] = max(tail[i], gap + tail[j])
        return tail

    @cached_property
    def _sequence(self) -> list[int]:
        """All ops, each after those that must precede it."""
        before: IntArray = self.precedes.sum(axis=0)
        return [int(i) for i in np.argsort(before, kind="stable")]

    @cached_property
    def _followers(self) -> list[list[tuple[int, float]]]:
        """The ops that start later than each op, with the least time between the starts."""
        followers: list[list[tuple[int, float]]] = [[] for _ in self.ops]
        for d in self.dependencies:
            followers[d.before].append((d.after, float(self.duration[d.before]) + d.delay))
        for a, b in self.adjacent:
            followers[a].append((b, float(self.duration[a])))
        return followers

    @cached_property
    def first(self) -> tuple[int | None, ...]:
        """Each rank's first op; None where it has none."""
        lowest = [self.problem.placement.stages_of(r)[:1] for r in range(self.problem.ranks)]
        return tuple(self.index(OpKind.F, s[0], 0) if s else None for s in lowest)

    @cached_property
    def last(self) -> tuple[tuple[int, ...], ...]:
        last = self.problem.microbatches - 1
        return tuple(
            tuple(self.index(OpKind.W, s, last) for s in self.problem.placement.stages_of(r))
            for r in range(self.problem.ranks)
        )

    @property
    def packings(self) -> Iterator[tuple[int, int, list[int]]]:
        """Each op with the first op of its rank and the rank's other ops, for *packing*."""
        for first, ops in zip(self.first, self.rank_ops, strict=True):
            if first is not None:  # else the rank has none
                yield from ((i, first, [j for j in ops if j != i]) for i in ops)

    @cached_property
    def memory_rules(self) -> tuple[MemoryRule, ...]:
        """The rules of each F of a rank whose limit can be reached at all."""
        rules = []
        for rank, ops in enumerate(self.rank_ops):
            forwards = [i for i in ops if self.ops[i].kind is OpKind.F]
            held = sum(self.costs.m_b[self.ops[i].stage] for i in forwards)
            if held > self.costs.limit[rank]:
                rules += [self._memory_rule(i, rank) for i in forwards]
        return tuple(rules)

    def memory_change(self, m_b: Sequence[T], m_w: Sequence[T], op: int) -> T:
        """The memory that op ``op`` takes, or gives back, given M_B and M_W by stage."""
        s = self.ops[op].stage
        return (m_b[s], m_w[s] - m_b[s], -m_w[s])[self.ops[op].kind]

    def _memory_rule(self, op: int, rank: int) -> MemoryRule:
        others = [o for o in self.rank_ops[rank] if o != op and not self.precedes[op, o]]
        held = tuple(o for o in others if self.precedes[o, op])
        return MemoryRule(op, rank, held, tuple(o for o in others if not self.precedes[o, op]))

    @cached_property
    def earliest(self) -> tuple[Earliest, ...]:
        """The rules of each F that may run before its rank's first B; none for the makespan."""
        if self.problem.objective is Objective.MAKESPAN:
            return ()
        forwards = [i for i, op in enumerate(self.ops) if op.kind is OpKind.F]
        rules = [self._earliest(i) for i in forwards]
        return tuple(r for r in rules if not any(self.precedes[b, r.op] for b in r.unless))

    def _earliest(self, i: int) -> Earliest:
        op, rank = self.ops[i], self.rank_of[i]
        stages = self.problem.placement.stages_of(rank)
        after = {
            self.index(OpKind.F, s, k): 0.0
            for s in stages
            for k in ((op.microbatch - 1,) if s == op.stage else range(self.problem.microbatches))
            if k >= 0
        }
        if op.stage > 0:
            for k in range(op.microbatch, self.problem.microbatches):
                delay = float(self.costs.into_f[op.stage, 0])
                after[self.index(OpKind.F, op.stage - 1, k)] = delay
        backwards = tuple(self.index(OpKind.B, s, 0) for s in stages)
        return Earliest(
            i, backwards, tuple((o, d) for o, d in after.items() if not self.precedes[i, o])
        )

    @cached_property
    def horizon(self) -> float:
        """No op of any valid schedule ends later: every op once, and what it waits for."""
        return float(self.duration.sum() + sum(d.delay for d in self.dependencies))

    def horizon_below(self, cost: float) -> float:
        """No op ends later in any schedule of at most ``cost``.

        The rank of stage 0 starts at 0 and ends by ``cost``; its last B comes after every rank's
        first op, so for the period all ranks start by ``cost`` and end by twice that.
        """
        times = 2 if self.problem.objective is Objective.PERIOD else 1
        return min(self.horizon, times * cost)


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """A solution: ``start`` of each op, (N,), and each rank's ops in the order of their starts."""

    start: FloatArray
    order: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> dict[int, int]:
        return {i: n for row in self.order for n, i in enumerate(row)}


def to_positions(formulation: Formulation, schedule: Schedule) -> Positions:
    """``schedule`` with its earliest times as a solution; a fused BW becomes B, then W.

    Raises ValueError where it exceeds a memory limit, for then it is no solution.
    """
    timing = schedule.timing or simulate(schedule)
    if not within_memory(schedule.problem, timing):
        raise ValueError(f"incumbent holds {timing.peak_memory}, more than its limit")
    start = np.zeros(len(formulation.ops))
    order = []
    for rank, starts in enumerate(timing.start):
        seen: dict[tuple[OpKind, int], int] = {}
        row = []
        for op, begin in zip(schedule.ops(rank), starts.tolist(), strict=True):
            for kind in (OpKind.B, OpKind.W) if op.kind is OpKind.BW else (op.kind,):
                k = seen.get((kind, op.stage), 0)
                seen[kind, op.stage] = k + 1
                i = formulation.index(kind, op.stage, k)
                start[i] = begin
                if op.kind is OpKind.BW and kind is OpKind.W:
                    start[i] += formulation.costs.durations[OpKind.B, op.stage]
                row.append(i)
        order.append(tuple(row))
    return Positions(start, tuple(order))


def to_schedule(
    formulation: Formulation, positions: Positions, report: Report, slack: float
) -> Schedule | None:
    """The better of two schedules of ``positions``, timed by the simulator; None if neither holds.

    One takes positions for microbatches, the other names microbatches so that every rank starts as
    late as it does in ``positions`` (see *first starts* in :mod:`.formulation`). ``slack``: by how
    much times may be off.
    """
    stages, microbatches = formulation.costs.owner.shape
    plain = np.tile(np.arange(microbatches), (stages, 1))
    found = [_named(formulation, positions, plain, report)]
    named = _microbatches(formulation, positions, slack)
    if not np.array_equal(named, plain):
        found.append(_named(formulation, positions, named, report))
    valid = [schedule for schedule in found if schedule is not None]
    return min(valid, key=objective_cost, default=None)


def _microbatches(formulation: Formulation, positions: Positions, slack: float) -> IntArray:
    """The microbatch of the k-th F of each stage, (S, M)."""
    stages, microbatches = formulation.costs.owner.shape
    end = positions.start + formulation.duration
    free = {b: end[a] for row in positions.order for a, b in pairwise(row)}
    names = np.tile(np.arange(microbatches), (stages, 1))
    for s in range(1, stages):
        arrival = [
            end[formulation.index(OpKind.F, s - 1, k)] + formulation.costs.into_f[s, 0]
            for k in range(microbatches)
        ]
        left = list(range(microbatches))
        for k in range(microbatches):
            i = formulation.index(OpKind.F, s, k)
            begin = positions.start[i]
            waits = begin > free.get(i, -np.inf) + slack
            pick = _pick(arrival, left, begin + slack, waits)
            left.remove(pick)
            names[s, k] = names[s - 1, pick]
    return names


def _pick(arrival: Sequence[float], left: list[int], by: float, waits: bool) -> int:
    """The F to take of those left: the last to arrive ``by`` then if one waits, else the first."""
    there = [k for k in left if arrival[k] <= by] or left[:1]
    return there[-1] if waits else there[0]


def _named(
    formulation: Formulation, positions: Positions, names: IntArray, report: Report
) -> Schedule | None:
    """B's and W's take the microbatches in the order in which the last stage runs their F's."""
    problem = formulation.problem

    def op(i: int) -> Op:
        kind, stage, k = (o := formulation.ops[i]).kind, o.stage, o.microbatch
        return Op(kind, stage, int(names[stage if kind is OpKind.F else -1, k]))

    order = tuple(pack(map(op, row)) for row in positions.order)
    schedule = Schedule(problem, order, report=report)
    try:
        timing = simulate(schedule)
    except InvalidScheduleError:
        return None
    return replace(schedule, timing=timing) if within_memory(problem, timing) else None
