"""Recomputation or offload of whole stages, by a reduction to a problem without remat.

If R runs right before its B, both together are a longer B. The part of M_B that is not
kept is the *remainder*. It is held only while this one op runs, so a rank needs room for one
remainder at a time::

    reduced     F .......... B      W       M_B: what waits for B; limit less the largest remainder
    expanded    F ....... R  B      W

Offload is similar, but its copies run beside the ops: with room for one or more remainders, an F
can run while the activations of another microbatch are being offloaded. :meth:`Reduction.orders`
chooses, from the memory available, which microbatches are offloaded, and when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED, STAYS, changes, held
from pipeloom.ir.model.ops import IntArray, Op, OpKind, pack, unpack
from pipeloom.ir.model.problem import Problem

from ..core.relaxations import offloadable, plain, recomputable
from ..core.tolerances import ROUNDING

FARTHEST = 6  # an L is moved forward past at most this many ops of its rank


@dataclass(frozen=True, slots=True)
class Reduction:
    """A choice for whole stages: stay, recompute or offload.

    ``choice``: of each stage, for all its microbatches, (S,). ``rests``: with offload, room is
    reserved for this many rests of M_B, each held only while a stage computes. ``latest``: when
    memory is needed, offload the microbatch whose B is last, else the one that has been held
    longest.
    """

    problem: Problem
    choice: tuple[int, ...]
    rests: int
    latest: bool

    @property
    def reduced(self) -> Problem | None:
        """The problem without remat; None if there is not enough memory."""
        problem, costs = self.problem, Costs.of(self.problem)
        room = np.array(problem.memory_limit)
        bare = plain(problem)
        stages = list(bare.profile.stages)
        for s, choice in enumerate(self.choice):
            if choice == STAYS:
                continue
            kept, t_w = float(costs.kept[choice, s]), stages[s].t_w
            again = float(costs.durations[OpKind.R, s]) if choice == RECOMPUTED else 0.0
            joined = self._joined(costs, s)
            stages[s] = replace(
                stages[s],
                t_b=stages[s].t_b + again + (t_w if joined else 0.0),
                t_w=0.0 if joined else t_w,
                m_b=kept,
                m_w=0.0 if joined else stages[s].m_w,
            )
        for rank in range(problem.ranks):
            own = problem.placement.stages_of(rank)
            room[rank] -= max((self._room(costs, s) for s in own), default=0.0)
        if (room < 0).any():
            return None
        profile = replace(bare.profile, stages=tuple(stages))
        return replace(bare, profile=profile, memory_limit=tuple(room.tolist()))

    def _room(self, costs: Costs, stage: int) -> float:
        choice = self.choice[stage]
        rests = self.rests if choice == OFFLOADED else 1
        return rests * float(costs.m_b[stage] - costs.kept[choice, stage])

    def _joined(self, costs: Costs, stage: int) -> bool:
        """Whether W must follow B at once, because M_W is more than what was kept for B."""
        choice = self.choice[stage]
        return choice != STAYS and bool(costs.m_w[stage] > costs.kept[choice, stage])

    def orders(self, rows: Sequence[IntArray]) -> list[tuple[IntArray, ...]]:
        """Convert an order of :attr:`reduced` to one of ``problem``."""
        costs = Costs.of(self.problem)
        joined = [self._joined(costs, s) for s in range(self.problem.stages)]
        result = []
        for rank, row in enumerate(rows):
            limit = self.problem.memory_limit[rank] * (1 + ROUNDING)
            ops = _Expansion(self, costs, joined, limit).of(_split(unpack(row), joined))
            result.append(pack(brought_forward(ops, self.problem, limit)))
        return [tuple(result)]


def reductions(problem: Problem, every: bool) -> Iterator[Reduction]:
    """Yield reductions of all stages, then of the first ones only.

    ``every``: only the one that recomputes all recomputable stages.
    """
    again = recomputable(problem) * RECOMPUTED
    if every:
        yield Reduction(problem, tuple(again.tolist()), 1, False)
        return
    seen = set()
    for first in sorted({-(-problem.stages * k // 4) for k in (4, 3, 2, 1)}, reverse=True):
        below = np.arange(problem.stages) < first
        for chosen in (again, offloadable(problem) * OFFLOADED):
            choices = tuple(np.where(below, chosen, STAYS).tolist())
            if choices in seen or not any(choices):
                continue
            seen.add(choices)
            ways = product((2, 1), (False, True)) if OFFLOADED in choices else [(1, False)]
            yield from (Reduction(problem, choices, *way) for way in ways)


def returned(op: Op, choice: int) -> Op:
    """The R or L that restores the activations for the B ``op``."""
    return replace(op, kind=OpKind.L if choice == OFFLOADED else OpKind.R)


def _split(row: list[Op], joined: list[bool]) -> list[Op]:
    """The row with each BW as B and W; W's of ``joined`` stages come right after their B's."""
    result = []
    for op in row:
        if op.kind is OpKind.W and joined[op.stage]:
            continue
        result.append(replace(op, kind=OpKind.B) if op.kind is OpKind.BW else op)
        if op.kind is OpKind.BW or (op.kind is OpKind.B and joined[op.stage]):
            result.append(replace(op, kind=OpKind.W))
    return result


class _Expansion:
    """Adds R's, O's and L's to the ops of one rank, and tracks the memory that it holds."""

    def __init__(self, of: Reduction, costs: Costs, joined: list[bool], limit: float) -> None:
        self._choice, self._latest = of.choice, of.latest
        self._costs, self._limit = costs, limit
        self._held = 0.0
        self._here: dict[tuple[int, int], int] = {}  # may be offloaded; the positions of their B's
        self._away: set[tuple[int, int]] = set()
        self._ops: list[Op] = []

    def of(self, row: list[Op]) -> list[Op]:
        backward = {(op.stage, op.microbatch): i for i, op in enumerate(row) if op.kind is OpKind.B}
        for op in row:
            if op.kind is OpKind.F:
                self._forward(op, backward[op.stage, op.microbatch])
            elif op.kind is OpKind.B:
                self._backward(op)
            else:
                self._held -= float(self._costs.m_w[op.stage])
                self._ops.append(op)
        return self._ops

    def _forward(self, op: Op, backward: int) -> None:
        choice = self._choice[op.stage]
        self._take(float(self._costs.kept[max(choice, STAYS), op.stage]))
        self._ops.append(op)
        if choice == OFFLOADED:
            self._here[op.stage, op.microbatch] = backward

    def _backward(self, op: Op) -> None:
        s, pair = op.stage, (op.stage, op.microbatch)
        self._here.pop(pair, None)
        if self._choice[s] == RECOMPUTED or pair in self._away:
            self._take(self._rest(s))
            self._ops.append(returned(op, self._choice[s]))
        self._held -= float(self._costs.m_b[s] - self._costs.m_w[s])
        self._ops.append(op)

    def _rest(self, stage: int) -> float:
        return float(self._costs.m_b[stage] - self._costs.kept[self._choice[stage], stage])

    def _take(self, memory: float) -> None:
        while self._held + memory > self._limit and self._here:
            leaves = max(self._here, key=self._here.__getitem__) if self._latest else None
            pair = leaves or next(iter(self._here))
            del self._here[pair]
            self._away.add(pair)
            self._held -= self._rest(pair[0])
            self._ops.append(Op(OpKind.O, *pair))
        self._held += memory


def brought_forward(ops: list[Op], problem: Problem, limit: float) -> list[Op]:
    """Move each L as far forward as memory allows, so that the activations are back in time."""
    if not any(op.kind is OpKind.L for op in ops):
        return ops
    kept = held(problem, (pack(ops),))[0].tolist()
    rests = changes(Costs.of(problem))[OpKind.L].tolist()
    for at, op in enumerate(ops):
        if op.kind is not OpKind.L:
            continue
        rest, out = rests[op.stage], replace(op, kind=OpKind.O)
        for place in range(at, max(1, at - FARTHEST), -1):
            before = kept[place - 2] if place > 1 else 0.0
            if ops[place - 1] == out or before + rest > limit:
                break
            ops[place - 1], ops[place] = ops[place], ops[place - 1]
            kept[place - 1] = before + rest
    return ops
