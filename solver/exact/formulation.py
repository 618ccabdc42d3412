"""The problem as variables, constraints and an objective, for all exact solvers.

Variables
    ``start[i]``, the start of op i; and for any two ops of one rank whose order is not fixed,
    whether the first runs before the second.
Constraints
    *dependencies*: ``start[after] >= end[before] + delay``.
    *no overlap*: of two ops of a rank, the later one starts no earlier than the other ends. Which
    one is later is fixed for some pairs (``adjacent``) and open for others (``open_pairs``).
    *memory*: at the start of every F, what the earlier ops on its rank have left held, plus its own
    M_B, is within the rank's limit. Memory grows only at F's, so this is sufficient.
    *spans*: the span of no rank (objective: period), or no end (makespan), exceeds the cost.
    *packing* (implied; it tightens relaxations): from the start of the rank's first op to the start
    of an op, there is time for all ops before it; from its end to the end of the rank's allowed
    span, there is time for all ops after it.
    *earliest* (period only): ops before a rank's first B start as early as they can.
Objective
    The cost, minimized. B and W are separate ops. A fused BW is never better: a B followed at once
    by its W sends the gradient earlier, releases memory no later and changes no first start.

It applies to activation passing with any number of stages per rank. Three facts keep it small and
exact.

**Microbatches are positions.** Let F(s, k), B(s, k), W(s, k) be the k-th F, B and W that stage s
runs; this fixes the order within each stage and kind. Take any valid schedule and rename its ops in
this way, keeping all times. Every dependency still holds: when the k-th F of stage s starts, k + 1
microbatches have passed F(s-1, .), so the k-th of those to end has ended at least a delay ago. The
same holds for B after the B of the next stage, B after F, and W after B. Durations, delays and
sizes depend only on the stage, so nothing else changes. With several stages per rank, the argument
applies to each stage.

**First starts.** Renaming keeps times. But the contract's times are the earliest of an *order*, and
the period counts from each rank's first start. For the makespan, earlier is never worse. For the
period it can be: a rank whose first op is the F of the second microbatch to arrive starts later,
and may have a shorter span (``tests/unit/support/test_oracle.py`` has an example). In the
contract's times, every op before a rank's first B (all of them are F's) starts exactly when the
previous op on the rank ends or some F of the previous stage arrives: *earliest*. Conversely, times
that satisfy this belong to an order of real microbatches (:func:`to_schedule` finds it): sort a
stage's F's by start. Those that start at an arrival take the microbatch that has just arrived, all
others the first one that is available. As the sets of arrived microbatches only grow, one is always
available. First starts depend only on F's, because a B on any rank comes after an F on every rank.
So the optimum here is the optimum over all valid schedules, including those in which another
microbatch is first.

**First and last ops.** A rank's first op is the first F of its lowest stage, which precedes all its
other ops. Its last op is the last W of one of its stages.

The file also converts schedules of real microbatches to solutions of the formulation, which has
positions, and back.
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
    """The memory constraint at the start of the F ``op``.

    ``held``: ops that always run before it; ``open``: ops that may run before it.
    """

    op: int
    rank: int
    held: tuple[int, ...]
    open: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Earliest:
    """The constraint *earliest* of op ``op``.

    It starts when one of ``after`` (ops with delays) has ended and its delay has passed, unless one
    of ``unless`` runs before it.
    """

    op: int
    unless: tuple[int, ...]
    after: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Formulation:
    """Ops by index: ``(kind * S + stage) * M + k`` for the k-th op of its kind and stage.

    ``rank_of``: rank of each op; ``duration``: (N,). ``precedes``: the orders that hold in every
    solution, (N, N).
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
        """The formulation of ``problem``. Raises InputError if activations are not passed."""
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
        """The pairs of ops of one rank whose order is not fixed."""
        fixed = self.precedes | self.precedes.T
        return tuple(
            (a, b) for ops in self.rank_ops for a in ops for b in ops if a < b and not fixed[a, b]
        )

    @cached_property
    def adjacent(self) -> tuple[tuple[int, int], ...]:
        """The pairs of ops of one rank in a fixed order, without those implied by others."""
        found = []
        for ops in self.rank_ops:
            fixed = self.precedes[np.ix_(ops, ops)].astype(np.int64)
            pairs = np.argwhere(fixed & (fixed @ fixed == 0))
            found += [(ops[a], ops[b]) for a, b in pairs.tolist()]
        return tuple(found)

    def ordered(self, first: Mapping[tuple[int, int], bool]) -> tuple[tuple[int, ...], ...]:
        """Each rank's ops in order; ``first``: for open pairs, whether the first op runs first."""
        before = np.zeros(len(self.ops), dtype=np.int64)
        for ops in self.rank_ops:
            before[list(ops)] = self.precedes[np.ix_(ops, ops)].sum(axis=0)
        for (a, b), leads in first.items():
            before[b if leads else a] += 1
        return tuple(tuple(sorted(ops, key=before.__getitem__)) for ops in self.rank_ops)

    @cached_property
    def implications(self) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
        """Pairs ``(a, b), (c, d)``: if a runs before b, then c runs before d.

        These are all that follow from one open pair and one of ``adjacent``. They are redundant,
        but help solvers to propagate.
        """
        after: dict[int, list[int]] = {}
        for a, b in self.adjacent:
            after.setdefault(a, []).append(b)
        both = [pair for a, b in self.open_pairs for pair in ((a, b), (b, a))]
        fixed = self.precedes | self.precedes.T
        return tuple(((a, b), (a, c)) for a, b in both for c in after.get(b, ()) if not fixed[a, c])

    def cycles(self, instant: Collection[int]) -> Iterator[tuple[int, int, int]]:
        """The triples a, b, c of ops of one rank whose orders could form a cycle a < b < c < a.

        Start times exclude such cycles, except among ops of zero duration, ``instant``.
        """
        fixed = self.precedes | self.precedes.T
        for ops in self.rank_ops:
            for a, b, c in permutations([i for i in ops if i in instant], 3):
                if a == min(a, b, c) and not (fixed[a, b] and fixed[b, c] and fixed[c, a]):
                    yield a, b, c

    @cached_property
    def heads(self) -> FloatArray:
        """The earliest start of each op: the longest path over preceding ops, shape (N,)."""
        head = np.zeros(len(self.ops))
        for i in self._sequence:
            for j, gap in self._followers[i]:
                head[j] = max(head[j], head[i] + gap)
        return head

    @cached_property
    def tails(self) -> FloatArray:
        """The longest path from the start of each op over all following ops, shape (N,)."""
        tail = self.duration.copy()
        for i in reversed(self._sequence):
            for j, gap in self._followers[i]:
                tail[i] = max(tail[i], gap + tail[j])
        return tail

    @cached_property
    def _sequence(self) -> list[int]:
        """All ops in topological order."""
        before: IntArray = self.precedes.sum(axis=0)
        return [int(i) for i in np.argsort(before, kind="stable")]

    @cached_property
    def _followers(self) -> list[list[tuple[int, float]]]:
        """For each op, those that start later, with the least time between both starts."""
        followers: list[list[tuple[int, float]]] = [[] for _ in self.ops]
        for d in self.dependencies:
            followers[d.before].append((d.after, float(self.duration[d.before]) + d.delay))
        for a, b in self.adjacent:
            followers[a].append((b, float(self.duration[a])))
        return followers

    @cached_property
    def first(self) -> tuple[int | None, ...]:
        """The first op of each rank; None if it has no ops."""
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
        """Yield each op, the first op of its rank and the rank's other ops, for *packing*."""
        for first, ops in zip(self.first, self.rank_ops, strict=True):
            if first is not None:  # otherwise the rank has no ops
                yield from ((i, first, [j for j in ops if j != i]) for i in ops)

    @cached_property
    def memory_rules(self) -> tuple[MemoryRule, ...]:
        """The memory constraints of the F's of all ranks whose limit can be exceeded."""
        rules = []
        for rank, ops in enumerate(self.rank_ops):
            forwards = [i for i in ops if self.ops[i].kind is OpKind.F]
            held = sum(self.costs.m_b[self.ops[i].stage] for i in forwards)
            if held > self.costs.limit[rank]:
                rules += [self._memory_rule(i, rank) for i in forwards]
        return tuple(rules)

    def memory_change(self, m_b: Sequence[T], m_w: Sequence[T], op: int) -> T:
        """The memory that ``op`` takes or, if negative, releases, given M_B and M_W by stage."""
        s = self.ops[op].stage
        return (m_b[s], m_w[s] - m_b[s], -m_w[s])[self.ops[op].kind]

    def _memory_rule(self, op: int, rank: int) -> MemoryRule:
        others = [o for o in self.rank_ops[rank] if o != op and not self.precedes[op, o]]
        held = tuple(o for o in others if self.precedes[o, op])
        return MemoryRule(op, rank, held, tuple(o for o in others if not self.precedes[o, op]))

    @cached_property
    def earliest(self) -> tuple[Earliest, ...]:
        """The constraint of each F that may run before its rank's first B; none for makespan."""
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
        """Upper bound on all ends in any valid schedule: the sum of all durations and delays."""
        return float(self.duration.sum() + sum(d.delay for d in self.dependencies))

    def horizon_below(self, cost: float) -> float:
        """Upper bound on all ends in any schedule of cost at most ``cost``.

        The rank of stage 0 starts at 0 and ends by ``cost``. Its last B comes after the first op of
        every rank. So with the period as objective, all ranks start by ``cost`` and end by twice
        that.
        """
        times = 2 if self.problem.objective is Objective.PERIOD else 1
        return min(self.horizon, times * cost)


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """A solution: the ``start`` of each op, (N,), and each rank's ops in order of their starts."""

    start: FloatArray
    order: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> dict[int, int]:
        return {i: n for row in self.order for n, i in enumerate(row)}


def to_positions(formulation: Formulation, schedule: Schedule) -> Positions:
    """``schedule``, with its earliest times, as a solution; a fused BW becomes B and W.

    Raises ValueError if it exceeds a memory limit, as it is then no solution.
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
    """The better of two schedules of ``positions``, timed by the simulator, or None.

    One uses positions as microbatches. The other names microbatches such that every rank starts as
    late as in ``positions`` (see *first starts* above). Either may be invalid. ``slack``: the
    largest error of the times.
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
    """The microbatch of the k-th F of each stage, shape (S, M)."""
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
    """The index of the F to take of ``left``: the last arrived if it waits, else the first."""
    there = [k for k in left if arrival[k] <= by] or left[:1]
    return there[-1] if waits else there[0]


def _named(
    formulation: Formulation, positions: Positions, names: IntArray, report: Report
) -> Schedule | None:
    """The schedule in which F's have the microbatches ``names``; None if it is not valid.

    B's and W's take the microbatches in the order in which the last stage runs their F's.
    """
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
