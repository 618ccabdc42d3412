"""The cost model where activations are recomputed or offloaded: the rules of :mod:`.levers`.

The kernel is that of :mod:`.simulate` with three kinds of op more.
"""

from __future__ import annotations

from itertools import pairwise

import numba
import numpy as np

from .costs import Costs
from .errors import InvalidScheduleError
from .levers import OFFLOADED, RECOMPUTED, STAYS, Choice, choice_of
from .ops import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    Op,
    OpKind,
)
from .problem import Problem
from .schedule import Schedule, Timing

_F, _B, _W, _BW = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.BW))
_R, _O, _L = int(OpKind.R), int(OpKind.O), int(OpKind.L)


@numba.njit(cache=True, nogil=True)
def run_with_levers(  # noqa: PLR0917
    order: IntArray,  # (N,) packed ops, rank after rank
    offsets: IntArray,  # (P + 1,) where each rank's ops begin
    choice: Choice,  # an R, O or L that is not chosen takes no time and changes nothing
    durations: FloatArray,
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    kept: FloatArray,  # (3, S)
    start: FloatArray,  # (N,) out
    end: FloatArray,  # (N,) out
    peak: FloatArray,  # (P,) out
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,  # (S, M) scratch
    there: FloatArray,  # (S, M) scratch: since when what B needs is there again; -2 after O
    position: IntArray,  # (P,) out: where each rank stopped; offsets[1:] where all ran
) -> bool:
    """Times every op; False where some can never start."""
    ranks, stages = offsets.shape[0] - 1, owner.shape[0]
    f_end[:] = -1.0
    b_end[:] = -1.0
    there[:] = -1.0
    clock, held = np.zeros(ranks), np.zeros(ranks)
    lane_out, lane_back = np.zeros(ranks), np.zeros(ranks)
    waits_for = np.full(ranks, -1, dtype=np.int64)
    ready = np.arange(ranks - 1, -1, -1)
    top = ranks
    for rank in range(ranks):
        position[rank] = offsets[rank]
        peak[rank] = 0.0
    done = 0
    while top > 0:
        top -= 1
        rank = ready[top]
        i = position[rank]
        now, memory, high = clock[rank], held[rank], peak[rank]
        while i < offsets[rank + 1]:
            op = order[i]
            kind = op & KIND_MASK
            s = op >> STAGE_SHIFT & STAGE_MASK
            j = op >> MICROBATCH_SHIFT
            lever = choice[s, j]
            begin, wakes = now, -1
            finish = now
            if kind == _F:
                if s > 0:
                    came = f_end[s - 1, j]
                    if came < 0.0:
                        waits_for[rank] = op - (1 << STAGE_SHIFT)
                        break
                    begin = max(now, came + into_f[s, j])
                memory += kept[1, s] if lever == RECOMPUTED else m_b[s]
                finish = now = begin + durations[kind, s]
                f_end[s, j] = now
                if s + 1 < stages:
                    wakes = owner[s + 1, j]
            elif kind == _W:
                if b_end[s, j] < 0.0:
                    waits_for[rank] = -2
                    break
                finish = now = begin + durations[kind, s]
                memory -= m_w[s]
            elif kind <= _BW:
                if f_end[s, j] < 0.0 or (lever != STAYS and there[s, j] < 0.0):
                    waits_for[rank] = -2
                    break
                if lever != STAYS:
                    begin = max(begin, there[s, j])
                if s + 1 < stages:
                    came = b_end[s + 1, j]
                    if came < 0.0:
                        waits_for[rank] = (op + (1 << STAGE_SHIFT)) & ~KIND_MASK | _B
                        break
                    begin = max(begin, came + into_b[s, j])
                finish = now = begin + durations[kind, s]
                b_end[s, j] = now
                memory -= m_b[s]
                if kind == _B:
                    memory += m_w[s]
                if s > 0:
                    wakes = owner[s - 1, j]
            elif kind == _R and lever == RECOMPUTED:
                if f_end[s, j] < 0.0:
                    waits_for[rank] = -2
                    break
                memory += m_b[s] - kept[1, s]
                finish = now = begin + durations[kind, s]
                there[s, j] = now
            elif kind == _O and lever == OFFLOADED:
                if f_end[s, j] < 0.0:
                    waits_for[rank] = -2
                    break
                begin = max(f_end[s, j], lane_out[rank])
                finish = lane_out[rank] = begin + durations[kind, s]
                now = max(now, finish)
                memory -= m_b[s] - kept[2, s]
                there[s, j] = -2.0
            elif kind == _L and lever == OFFLOADED:
                if there[s, j] != -2.0:
                    waits_for[rank] = -2
                    break
                begin = max(now, lane_back[rank])
                finish = lane_back[rank] = begin + durations[kind, s]
                memory += m_b[s] - kept[2, s]
                there[s, j] = finish
            high = max(high, memory)
            start[i] = begin
            end[i] = finish
            i += 1
            if wakes >= 0 and wakes != rank:
                made = op if kind == _F else op & ~KIND_MASK | _B
                if waits_for[wakes] == made:
                    waits_for[wakes] = -1
                    ready[top] = wakes
                    top += 1
        done += i - position[rank]
        position[rank] = i
        clock[rank], held[rank], peak[rank] = now, memory, high
    return bool(done == order.shape[0])


class LeverSimulator:
    """The kernel with its arrays made once, as :class:`.simulate.Simulator` is for plain orders."""

    def __init__(self, problem: Problem, offsets: IntArray) -> None:
        self.problem = problem
        self.offsets = offsets
        c = self.costs = Costs.of(problem)
        self._numbers = c.durations, c.owner, c.into_f, c.into_b, c.m_b, c.m_w, c.kept
        self.start, self.end = np.empty((2, int(offsets[-1])))
        self.peak = np.empty(problem.ranks)
        self.position = np.empty(problem.ranks, dtype=np.int64)
        self._scratch = tuple(np.empty((3, problem.stages, problem.microbatches)))

    def run(self, order: IntArray, choice: Choice) -> bool:
        """Times every op; False where some can never start."""
        f_end, b_end, there = self._scratch
        return bool(
            run_with_levers(
                order,
                self.offsets,
                choice,
                *self._numbers,
                self.start,
                self.end,
                self.peak,
                f_end,
                b_end,
                there,
                self.position,
            )
        )


def simulate_with_levers(schedule: Schedule) -> Timing:
    """The time of every op. Raises InvalidScheduleError for what can never run, as ``simulate`` does."""
    problem = schedule.problem
    choice = choice_of(problem, schedule.order)
    offsets = np.cumsum([0, *map(len, schedule.order)]).astype(np.int64)
    flat = np.concatenate(schedule.order).astype(np.int64)
    simulator = LeverSimulator(problem, offsets)
    if not simulator.run(flat, choice):
        raise InvalidScheduleError(stuck(flat, offsets, simulator.position))
    rows = [slice(*ends) for ends in pairwise(offsets.tolist())]
    return Timing(
        tuple(simulator.start[row] for row in rows),
        tuple(simulator.end[row] for row in rows),
        tuple(simulator.peak.tolist()),
        np.empty((0, 2)),
        beside=tuple(np.flatnonzero((row & KIND_MASK) >= _O).tolist() for row in schedule.order),
    )


def stuck(flat: IntArray, offsets: IntArray, position: IntArray) -> list[str]:
    """The op that each rank stopped at, (P,), where that is not its end."""
    bounds = zip(position.tolist(), pairwise(offsets.tolist()), strict=True)
    return [
        f"rank {rank} can never start {Op.unpack(int(flat[at]))} (its op {at - first}): its input never comes"
        for rank, (at, (first, stop)) in enumerate(bounds)
        if at < stop
    ]
