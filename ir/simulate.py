"""The one cost model: from an order of ops to the time of each, by the contract's rules.

An op starts when its rank is free and its inputs have come. The kernel is event driven: a rank
runs its list until an input is missing, notes what it waits for, and is resumed by the op that
makes it. Every op is visited once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numba
import numpy as np

from .costs import Costs
from .errors import InvalidScheduleError
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
from .profile import Profile, StageProfile
from .schedule import Schedule, Timing
from .simulate_transfers import simulate_transfers

_F, _B, _W = int(OpKind.F), int(OpKind.B), int(OpKind.W)


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


def simulate(schedule: Schedule) -> Timing:
    """The time of every op of ``schedule``.

    Raises InvalidScheduleError, naming each stuck rank and the op it stops at, where the order
    can never run (an input comes later than its use, or never).
    """
    if schedule.transfers:
        return simulate_transfers(schedule)
    problem, order = schedule.problem, schedule.order
    costs = Costs.of(problem)
    offsets = np.concatenate([[0], np.cumsum([len(ops) for ops in order])]).astype(np.int64)
    flat = np.concatenate(order).astype(np.int64)
    start, end = np.empty(len(flat)), np.empty(len(flat))
    peak = np.empty(problem.ranks)
    position = np.empty(problem.ranks, dtype=np.int64)
    scratch = np.empty((2, problem.stages, problem.microbatches))
    complete = run_kernel(
        flat,
        offsets,
        costs.durations,
        costs.owner,
        costs.into_f,
        costs.into_b,
        costs.m_b,
        costs.m_w,
        start,
        end,
        peak,
        scratch[0],
        scratch[1],
        position,
    )
    if not complete:
        raise InvalidScheduleError(
            [
                f"rank {rank} can never start {Op.unpack(int(flat[at]))} (its op {at - first}): its input never comes"
                for rank, (at, first, stop) in enumerate(
                    zip(position.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
                )
                if at < stop
            ]
        )
    rows = [slice(*ends) for ends in pairwise(offsets.tolist())]
    return Timing(
        tuple(start[row] for row in rows),
        tuple(end[row] for row in rows),
        tuple(peak.tolist()),
        np.empty((0, 2)),
    )


def warm_up() -> None:
    """Has the kernel ready: compiled on its first use on a machine, read from its cache later."""
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0),), 1), 1)
    simulate(Schedule.of(problem, [[Op(OpKind.F, 0, 0)]], ""))


def timed(schedule: Schedule) -> Schedule:
    """``schedule`` with its simulated timing."""
    return replace(schedule, timing=simulate(schedule))
