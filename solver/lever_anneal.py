"""Simulated annealing on orders with levers: which are pulled changes along with the order.

The order holds an R, an O and an L for all that may be recomputed or offloaded; those that are not
chosen take no time and no memory (:func:`.simulate_levers.run_with_levers`), but keep a place. So a
move either takes one op a few places on, as in :mod:`.anneal`, or changes what becomes of some
microbatches of a stage.
"""

from __future__ import annotations

from itertools import pairwise

import numba
import numpy as np
import numpy.typing as npt

from pipeloom.ir.levers import OFFLOADED, RECOMPUTED, STAYS, Choice, choice_of
from pipeloom.ir.ops import (
    CLASS_MASK,
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    Op,
    OpKind,
    pack,
    unpack,
)
from pipeloom.ir.problem import Objective, Problem
from pipeloom.ir.simulate_levers import LeverSimulator, run_with_levers

from .anneal import random, shift
from .chain import ROUNDING
from .incumbent import Incumbent
from .levers import offloadable, recomputable
from .local_search import COLD, SLICE, SLICES, split_backwards

_F, _B, _W, _R, _O, _L = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.R, OpKind.O, OpKind.L))
CHANGES = 0.3
"""Share of moves that change what becomes of microbatches."""
LONGEST = 4
"""Of so many microbatches in a row at most."""


class LeverAnnealer:
    """Anneals from the best order. ``every``: what may be recomputed always is."""

    def __init__(self, problem: Problem, rng: np.random.Generator, every: bool) -> None:
        self._problem, self._rng = problem, rng
        again, out = recomputable(problem), offloadable(problem)
        self._ways = np.array(
            [again if every else np.ones_like(again), again, out & ~again if every else out]
        )
        if every:
            self._ways[STAYS] = ~again
        self._state = rng.integers(1, 1 << 62, size=1).astype(np.uint64)

    def round(self, best: Incumbent) -> None:
        assert best.order is not None
        problem = self._problem
        choice = choice_of(problem, best.order)
        rows = [with_all_levers(row, self._ways) for row in best.order]
        offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        order = np.concatenate(rows)
        simulator = LeverSimulator(problem, offsets)
        unit = float(simulator.costs.durations[:3].mean())
        hot = unit * 10 ** self._rng.uniform(-3.0, -0.5)
        reach = int(self._rng.choice((3, 8, 20)))
        moves = max(100, SLICE // (2 * len(order)))
        for piece in range(SLICES):
            found, chosen = order.copy(), choice.copy()
            c = simulator.costs
            cost = anneal_levers(
                order, choice, found, chosen, best.cost, offsets, self._ways,
                c.durations, c.owner, c.into_f, c.into_b, c.m_b, c.m_w, c.kept,
                c.limit * (1 + ROUNDING), problem.objective is Objective.MAKESPAN,
                hot * COLD ** (piece / SLICES), hot * COLD ** ((piece + 1) / SLICES),
                moves, reach, self._state, best.stopped,
            )  # fmt: skip
            best.spend(2 * moves * len(order))
            if cost < best.cost:
                best.offer(only_pulled(found, offsets, chosen), "search", cost)
            if best.over():
                return


def with_all_levers(row: IntArray, ways: npt.NDArray[np.bool_]) -> IntArray:
    """A rank's order with an R, an O and an L for all that may have one, (3, S) ``ways``.

    Those that are new: R just before B, L one op before that, O one op after F; next to each other
    where there is less between.
    """
    ops = unpack(split_backwards(row))
    there = set(ops)
    result: list[Op] = []
    for op in ops:
        again, out, back = (
            Op(kind, op.stage, op.microbatch) for kind in (OpKind.R, OpKind.O, OpKind.L)
        )
        if op.kind is OpKind.B:
            if ways[OFFLOADED, op.stage] and back not in there:
                at = len(result)
                place = at - 1 if result[at - 1] not in (out, _forward(op)) else at
                result.insert(place, back)
            if ways[RECOMPUTED, op.stage] and again not in there:
                result.append(again)
        result.append(op)
        if op.kind is OpKind.F and ways[OFFLOADED, op.stage] and out not in there:
            result.append(out)
    return pack(result)


def _forward(op: Op) -> Op:
    return Op(OpKind.F, op.stage, op.microbatch)


def only_pulled(order: IntArray, offsets: IntArray, choice: Choice) -> tuple[IntArray, ...]:
    """The rows of ``order`` without the ops that are not chosen."""
    kind = order & KIND_MASK
    chosen = choice[order >> STAGE_SHIFT & STAGE_MASK, order >> MICROBATCH_SHIFT]
    idle = ((kind == _R) & (chosen != RECOMPUTED)) | ((kind >= _O) & (chosen != OFFLOADED))
    return tuple(order[a:b][~idle[a:b]] for a, b in pairwise(offsets.tolist()))


@numba.njit(cache=True, nogil=True)
def keeps_rules(  # noqa: PLR0917
    order: IntArray,
    first: int,  # the rank's ops
    stop: int,
    choice: Choice,
    m_b: FloatArray,
    m_w: FloatArray,
    kept: FloatArray,
    limit: float,
    done: npt.NDArray[np.int8],  # (S, M) scratch, all 0; left all 0
) -> bool:
    """Whether the ops of each microbatch are in order and the memory fits."""
    held, keeps = 0.0, True
    for at in range(first, stop):
        op = order[at]
        kind, s, j = op & KIND_MASK, op >> STAGE_SHIFT & STAGE_MASK, op >> MICROBATCH_SHIFT
        steps, lever = done[s, j], choice[s, j]
        if kind == _F:
            held += kept[1, s] if lever == RECOMPUTED else m_b[s]
            keeps = steps == 0
            done[s, j] = 1
        elif kind == _W:
            held -= m_w[s]
            keeps = steps == 3
        elif kind == _R:
            if lever == RECOMPUTED:
                held += m_b[s] - kept[1, s]
            keeps = 1 <= steps <= 2
        elif kind == _O:
            if lever == OFFLOADED:
                held -= m_b[s] - kept[2, s]
            keeps = steps == 1
            done[s, j] = 2
        elif kind == _L:
            if lever == OFFLOADED:
                held += m_b[s] - kept[2, s]
            keeps = steps == 2
            done[s, j] = 1
        else:
            held += m_w[s] - m_b[s]
            keeps = steps == 1
            done[s, j] = 3
        if not keeps or held > limit:
            keeps = False
            break
    for at in range(first, stop):
        op = order[at]
        done[op >> STAGE_SHIFT & STAGE_MASK, op >> MICROBATCH_SHIFT] = 0
    return keeps


@numba.njit(cache=True, nogil=True)
def anneal_levers(  # noqa: PLR0917
    order: IntArray,  # (N,) packed ops, rank after rank, all levers among them; changed
    choice: Choice,  # (S, M); changed
    best: IntArray,  # (N,) out: the best order met, where it beats best_cost
    best_choice: Choice,  # (S, M) out: and what becomes of each
    best_cost: float,
    offsets: IntArray,
    ways: npt.NDArray[np.bool_],  # (3, S) what each stage may have
    durations: FloatArray,
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    kept: FloatArray,
    limit: FloatArray,
    makespan: bool,
    hot: float,  # temperature of the first and of the last move, in units of cost
    cold: float,
    moves: int,
    reach: int,  # how many places a move goes at most
    state: npt.NDArray[np.uint64],  # (1,) of the random numbers; changed
    stopped: npt.NDArray[np.bool_],  # (1,) turns true where another thread ends it all
) -> float:
    """Tries ``moves`` moves; returns the cost of ``best``."""
    ranks, size = offsets.shape[0] - 1, order.shape[0]
    stages, microbatches = owner.shape
    start, end = np.empty(size), np.empty(size)
    peak, position = np.empty(ranks), np.empty(ranks, dtype=np.int64)
    f_end, b_end, there = np.empty(owner.shape), np.empty(owner.shape), np.empty(owner.shape)
    done = np.zeros(owner.shape, dtype=np.int8)
    saved, was = np.empty(reach + 1, dtype=np.int64), np.empty(LONGEST, dtype=np.int8)
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current, critical = hot, np.inf, 0
    for move in range(-1, moves):
        if stopped[0]:
            break
        low, high = 0, -1
        stage, since, until = 0, 0, 0
        if move >= 0:
            temperature *= cooling
            if random(state) < CHANGES:
                stage = int(random(state) * stages)
                rank = owner[stage, 0]
                lever = int(random(state) * 3)
                if not ways[lever, stage]:
                    continue
                since = int(random(state) * microbatches)
                until = min(microbatches, since + 1 + int(LONGEST * random(state) ** 2))
                was[: until - since] = choice[stage, since:until]
                choice[stage, since:until] = lever
            else:
                rank = critical if random(state) < 0.3 else int(random(state) * ranks)
                first, length = offsets[rank], offsets[rank + 1] - offsets[rank]
                if length < 2:
                    continue
                source = first + int(random(state) * length)
                distance = 1 + int(reach * random(state) ** 3)
                target = source + distance if random(state) < 0.5 else source - distance
                if target < first or target >= first + length:
                    continue
                if order[source] & CLASS_MASK == order[target] & CLASS_MASK:
                    continue
                low, high = min(source, target), max(source, target)
                saved[: high - low + 1] = order[low : high + 1]
                shift(order, source, target)
            if not keeps_rules(
                order, offsets[rank], offsets[rank + 1], choice, m_b, m_w, kept, limit[rank], done
            ):
                order[low : high + 1] = saved[: high - low + 1]
                choice[stage, since:until] = was[: until - since]
                continue
        runs = run_with_levers(
            order, offsets, choice, durations, owner, into_f, into_b, m_b, m_w, kept,
            start, end, peak, f_end, b_end, there, position,
        )  # fmt: skip
        cost, value, longest = np.inf, np.inf, 0
        if runs:
            span, total, last, opens = 0.0, 0.0, 0.0, np.inf
            for r in range(ranks):
                if offsets[r + 1] > offsets[r]:
                    begins, ends = start[offsets[r]], end[offsets[r + 1] - 1]
                    total += ends - begins
                    last, opens = max(last, ends), min(opens, begins)
                    if ends - begins > span:
                        span, longest = ends - begins, r
            cost = last - opens if makespan else span
            # what ranks span beyond the longest tells apart the many orders of equal cost
            value = cost + 0.1 * total / ranks
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current, critical = value, longest
            if cost < best_cost:
                best_cost = cost
                best[:] = order
                best_choice[:] = choice
        else:
            order[low : high + 1] = saved[: high - low + 1]
            choice[stage, since:until] = was[: until - since]
    return best_cost
