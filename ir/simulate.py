"""The one cost model: from an order of ops to the time of each, by the contract's rules.

An op starts when its rank is free and its inputs have come. The kernel is event driven: a rank
runs its list until an input is missing, notes what it waits for, and is resumed by the op that
makes it. Every op is visited once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numba
import numpy as np

from .averages import averages
from .costs import Costs
from .errors import InvalidScheduleError
from .levers import pulled
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
from .problem import Objective, Problem
from .profile import Profile, StageProfile
from .schedule import Schedule, Timing
from .simulate_levers import simulate_with_levers, stuck
from .simulate_transfers import simulate_transfers

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))


@numba.njit(cache=True, nogil=True)
def run_kernel(  # noqa: PLR0917
    order: IntArray,  # (N,) packed ops, rank after rank
    offsets: IntArray,  # (P + 1,) where each rank's ops begin
    durations: FloatArray,
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    start: FloatArray,  # (N,) out
    end: FloatArray,  # (N,) out
    peak: FloatArray,  # (P,) out
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,  # (S, M) scratch
    position: IntArray,  # (P,) out: where each rank stopped; offsets[1:] where all ran
) -> bool:
    """Times every op; False where some can never start."""
    ranks = offsets.shape[0] - 1
    stages = owner.shape[0]
    f_end[:] = -1.0
    b_end[:] = -1.0
    waits_for = np.full(ranks, -1, dtype=np.int64)
    clock = np.zeros(ranks)
    held = np.zeros(ranks)
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
        now = clock[rank]
        memory = held[rank]
        high = peak[rank]
        stop = offsets[rank + 1]
        while i < stop:
            op = order[i]
            kind = op & KIND_MASK
            stage = op >> STAGE_SHIFT & STAGE_MASK
            microbatch = op >> MICROBATCH_SHIFT
            begin = now
            wakes = -1
            if kind == _F:
                if stage > 0:
                    came = f_end[stage - 1, microbatch]
                    if came < 0.0:
                        waits_for[rank] = op - (1 << STAGE_SHIFT)
                        break
                    begin = max(now, came + into_f[stage, microbatch])
                memory += m_b[stage]
                high = max(high, memory)
                now = begin + durations[kind, stage]
                f_end[stage, microbatch] = now
                if stage + 1 < stages:
                    wakes = owner[stage + 1, microbatch]
            elif kind == _W:
                if b_end[stage, microbatch] < 0.0:
                    waits_for[rank] = -2
                    break
                now = begin + durations[kind, stage]
                memory -= m_w[stage]
            else:
                if f_end[stage, microbatch] < 0.0:
                    waits_for[rank] = -2
                    break
                if stage + 1 < stages:
                    came = b_end[stage + 1, microbatch]
                    if came < 0.0:
                        # B and BW of a stage send the same thing: wait for either, as B
                        waits_for[rank] = (op + (1 << STAGE_SHIFT)) & ~KIND_MASK | _B
                        break
                    begin = max(now, came + into_b[stage, microbatch])
                now = begin + durations[kind, stage]
                b_end[stage, microbatch] = now
                memory -= m_b[stage]
                if kind == _B:
                    memory += m_w[stage]
                if stage > 0:
                    wakes = owner[stage - 1, microbatch]
            start[i] = begin
            end[i] = now
            i += 1
            if wakes >= 0 and wakes != rank:
                made = op if kind == _F else op & ~KIND_MASK | _B
                if waits_for[wakes] == made:
                    waits_for[wakes] = -1
                    ready[top] = wakes
                    top += 1
        done += i - position[rank]
        position[rank] = i
        clock[rank] = now
        held[rank] = memory
        peak[rank] = high
    return bool(done == order.shape[0])


class Simulator:
    """The kernel with its arrays made once, for orders of packed ops of one problem.

    Orders are flat, rank after rank, split at ``offsets``, shape (P + 1,). After :meth:`run`,
    ``start`` and ``end`` are those of each op, ``peak`` the memory of each rank, ``position`` where
    each rank stopped. For one thread at a time.
    """

    def __init__(self, problem: Problem, offsets: IntArray, costs: Costs | None = None) -> None:
        self.problem = problem
        self.offsets = offsets
        self._costs = Costs.of(problem) if costs is None else costs
        self.start, self.end = np.empty((2, int(offsets[-1])))
        self.peak = np.empty(problem.ranks)
        self.position = np.empty(problem.ranks, dtype=np.int64)
        self._f_end, self._b_end = np.empty((2, problem.stages, problem.microbatches))

    def run(self, order: IntArray) -> bool:
        """Times every op; False where some can never start."""
        c = self._costs
        return bool(
            run_kernel(
                order,
                self.offsets,
                c.durations,
                c.owner,
                c.into_f,
                c.into_b,
                c.m_b,
                c.m_w,
                self.start,
                self.end,
                self.peak,
                self._f_end,
                self._b_end,
                self.position,
            )
        )

    def cost(self, order: IntArray) -> float:
        """Period or makespan, as the problem's objective says; infinite where it cannot run."""
        if not self.run(order):
            return float("inf")
        used = self.offsets[1:] > self.offsets[:-1]
        first, last = self.start[self.offsets[:-1][used]], self.end[self.offsets[1:][used] - 1]
        if self.problem.objective is Objective.PERIOD:
            return float((last - first).max())
        return float(last.max() - first.min())


def offsets_of(order: Sequence[IntArray]) -> IntArray:
    """Where each rank's ops begin once they are one array, and where the last end: (P + 1,)."""
    return np.cumsum([0, *map(len, order)]).astype(np.int64)


def simulate(schedule: Schedule) -> Timing:
    """The time of every op of ``schedule``.

    Raises InvalidScheduleError, naming each stuck rank and the op it stops at, where the order
    can never run (an input comes later than its use, or never).
    """
    timing = _simulated(schedule)
    if schedule.problem.profile.data_parallel is None:
        return timing
    return replace(timing, averages=averages(schedule, timing))


def _simulated(schedule: Schedule) -> Timing:
    if schedule.transfers or any(schedule.pairs):
        return simulate_transfers(schedule)
    if pulled(schedule.order):
        return simulate_with_levers(schedule)
    offsets = offsets_of(schedule.order)
    flat = np.concatenate(schedule.order).astype(np.int64)
    simulator = Simulator(schedule.problem, offsets)
    if not simulator.run(flat):
        raise InvalidScheduleError(stuck(flat, offsets, simulator.position))
    rows = [slice(*ends) for ends in pairwise(offsets.tolist())]
    return Timing(
        tuple(simulator.start[row] for row in rows),
        tuple(simulator.end[row] for row in rows),
        tuple(simulator.peak.tolist()),
        np.empty((0, 2)),
    )


def warm_up() -> None:
    """Has the kernel ready: compiled on its first use on a machine, read from its cache later."""
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0),), 1), 1)
    simulate(Schedule.of(problem, [[Op(OpKind.F, 0, 0)]], ""))


def timed(schedule: Schedule) -> Schedule:
    """``schedule`` with its simulated timing."""
    return replace(schedule, timing=simulate(schedule))
