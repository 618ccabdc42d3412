"""The cost model: computes the start and end of each op from the order of ops on each rank.

An op starts when its rank is free and its inputs have arrived. The kernel is event driven: a rank
runs its list until an input is missing, records which op it waits for, and is resumed by that op.
Every op is visited once. This kernel exists in addition to :mod:`.event_kernels` because it is
faster: building the edges of a :mod:`.dependency_graph` would take longer than this kernel runs.

Recomputation and offload follow the rules in :mod:`.remat`. The kernel is compiled twice, with and
without recomputation and offload, so that orders without them are simulated as fast as possible.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..errors import InvalidScheduleError
from ..kernels import kernel
from ..model.ops import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    Op,
    OpKind,
    offsets_of,
)
from ..model.problem import Objective, Problem
from ..model.profile import Profile, StageProfile
from ..model.schedule import Schedule, Timing
from .cost_tables import Costs, of_kind, of_pair
from .gradient_averaging import averages
from .graph_simulator import simulate_transfers
from .remat import OFFLOADED, RECOMPUTED, STAYS, Choice, choice_of, pulled

_F, _B, _W, _BW = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.BW))
_R, _O, _L = int(OpKind.R), int(OpKind.O), int(OpKind.L)

RematArrays = tuple[Choice, FloatArray, FloatArray, FloatArray]
"""The kernel's arrays for recomputation and offload.

- the choice for each (stage, microbatch), (S, M);
- memory kept between F and B, by choice, (3, S), or (3, S, M) if microbatches differ;
- scratch: when the activations for each B have been recomputed or loaded back, in ms, (S, M); -1
  before, and -2 while they are offloaded;
- scratch: the ends of each rank's last copies to the host and back, in ms, (2, P).
"""


@kernel
def run_kernel(  # noqa: PLR0917
    order: IntArray,  # (N,) packed ops, rank after rank
    first: IntArray,  # (P,) where each rank's ops begin in ``order``
    stop: IntArray,  # (P,) where each rank's ops end; its later ops are not simulated
    durations: FloatArray,
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    remat: RematArrays | None,
    start: FloatArray,  # (N,) out
    end: FloatArray,  # (N,) out
    peak: FloatArray,  # (P,) out
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,  # (S, M) scratch
    position: IntArray,  # (P,) out: where each rank stopped; its stop if all its ops ran
) -> bool:
    """Compute start and end of every op, in ms, and the peak memory of each rank.

    The arrays marked ``out`` are results. ``durations`` to ``m_w`` are fields of
    :class:`.cost_tables.Costs`. Returns False if some ops can never start.
    """
    ranks = len(first)
    stages = owner.shape[0]
    f_end[:] = -1.0
    b_end[:] = -1.0
    if remat is not None:
        choice, kept, there, copies = remat
        there[:] = -1.0
        copies[:] = 0.0
    waits_for = np.full(ranks, -1, dtype=np.int64)
    clock = np.zeros(ranks)
    held = np.zeros(ranks)
    ready = np.arange(ranks - 1, -1, -1)
    top = ranks
    left = int((stop - first).sum())
    for rank in range(ranks):
        position[rank] = first[rank]
        peak[rank] = 0.0
    while top > 0:
        top -= 1
        rank = ready[top]
        i = position[rank]
        now = clock[rank]
        memory = held[rank]
        high = peak[rank]
        last = stop[rank]
        while i < last:
            op = order[i]
            kind = op & KIND_MASK
            stage = op >> STAGE_SHIFT & STAGE_MASK
            microbatch = op >> MICROBATCH_SHIFT
            begin = now
            wakes = -1
            if remat is not None and kind > _BW:
                if f_end[stage, microbatch] < 0.0:
                    waits_for[rank] = -2
                    break
                if kind == _R:
                    memory += of_pair(m_b, stage, microbatch) - of_kind(
                        kept, RECOMPUTED, stage, microbatch
                    )
                    finish = now = begin + of_kind(durations, kind, stage, microbatch)
                    there[stage, microbatch] = finish
                elif kind == _O:
                    begin = max(f_end[stage, microbatch], copies[0, rank])
                    finish = copies[0, rank] = begin + of_kind(durations, kind, stage, microbatch)
                    now = max(now, finish)
                    memory -= of_pair(m_b, stage, microbatch) - of_kind(
                        kept, OFFLOADED, stage, microbatch
                    )
                    there[stage, microbatch] = -2.0
                else:
                    if there[stage, microbatch] != -2.0:
                        waits_for[rank] = -2
                        break
                    begin = max(now, copies[1, rank])
                    finish = copies[1, rank] = begin + of_kind(durations, kind, stage, microbatch)
                    memory += of_pair(m_b, stage, microbatch) - of_kind(
                        kept, OFFLOADED, stage, microbatch
                    )
                    there[stage, microbatch] = finish
                high = max(high, memory)
                start[i] = begin
                end[i] = finish
                i += 1
                continue
            if kind == _F:
                if stage > 0:
                    came = f_end[stage - 1, microbatch]
                    if came < 0.0:
                        waits_for[rank] = op - (1 << STAGE_SHIFT)
                        break
                    begin = max(now, came + into_f[stage, microbatch])
                memory += of_pair(m_b, stage, microbatch)
                if remat is not None and choice[stage, microbatch] == RECOMPUTED:
                    memory += of_kind(kept, RECOMPUTED, stage, microbatch) - of_pair(
                        m_b, stage, microbatch
                    )
                high = max(high, memory)
                now = begin + of_kind(durations, kind, stage, microbatch)
                f_end[stage, microbatch] = now
                if stage + 1 < stages:
                    wakes = owner[stage + 1, microbatch]
            elif kind == _W:
                if b_end[stage, microbatch] < 0.0:
                    waits_for[rank] = -2
                    break
                now = begin + of_kind(durations, kind, stage, microbatch)
                memory -= of_pair(m_w, stage, microbatch)
            else:
                if f_end[stage, microbatch] < 0.0:
                    waits_for[rank] = -2
                    break
                if remat is not None and choice[stage, microbatch] != STAYS:
                    if there[stage, microbatch] < 0.0:
                        waits_for[rank] = -2
                        break
                    begin = now = max(now, there[stage, microbatch])
                if stage + 1 < stages:
                    came = b_end[stage + 1, microbatch]
                    if came < 0.0:
                        # B and BW send the same tensor: wait for either under the name of B
                        waits_for[rank] = (op + (1 << STAGE_SHIFT)) & ~KIND_MASK | _B
                        break
                    begin = max(now, came + into_b[stage, microbatch])
                now = begin + of_kind(durations, kind, stage, microbatch)
                b_end[stage, microbatch] = now
                memory -= of_pair(m_b, stage, microbatch)
                if kind == _B:
                    memory += of_pair(m_w, stage, microbatch)
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
        left -= i - position[rank]
        position[rank] = i
        clock[rank] = now
        held[rank] = memory
        peak[rank] = high
    return bool(left == 0)


def remat_arrays(costs: Costs, choice: Choice) -> RematArrays:
    """The kernel's arrays for the recomputation and offload in ``choice``, including scratch."""
    return choice, costs.kept, np.empty(costs.owner.shape), np.empty((2, len(costs.limit)))


class Simulator:
    """The kernel with preallocated arrays, to simulate many orders of one problem. Not thread-safe.

    An order is the concatenation of all ranks' packed ops; ``offsets``, (P + 1,), are the positions
    at which it is split by rank. After :meth:`run`, ``start`` and ``end`` are the times of each op
    in ms, (N,), ``peak`` is the peak memory of each rank, (P,), and ``position`` is the position in
    the order at which each rank stopped, (P,).
    """

    def __init__(self, problem: Problem, offsets: IntArray, costs: Costs | None = None) -> None:
        self.problem = problem
        self.offsets = offsets
        self._costs = Costs.of(problem) if costs is None else costs
        self.start, self.end = np.empty((2, int(offsets[-1])))
        self.peak = np.empty(problem.ranks)
        self.position = np.empty(problem.ranks, dtype=np.int64)
        self._f_end, self._b_end = np.empty((2, problem.stages, problem.microbatches))

    def run(self, order: IntArray, choice: Choice | None = None) -> bool:
        """Simulate ``order``; the results are attributes. Returns False if ops can never start.

        ``choice``: the recomputation and offload of each (stage, microbatch), (S, M), if the order
        has R, O or L ops (:func:`.remat.choice_of`).
        """
        c = self._costs
        return bool(
            run_kernel(
                order,
                self.offsets[:-1],
                self.offsets[1:],
                c.durations,
                c.owner,
                c.into_f,
                c.into_b,
                c.m_b,
                c.m_w,
                None if choice is None else remat_arrays(c, choice),
                self.start,
                self.end,
                self.peak,
                self._f_end,
                self._b_end,
                self.position,
            )
        )

    def cost(self, order: IntArray) -> float:
        """The period or makespan of ``order``, in ms; infinite if some ops can never start."""
        if not self.run(order):
            return float("inf")
        used = self.offsets[1:] > self.offsets[:-1]
        first, last = self.start[self.offsets[:-1][used]], self.end[self.offsets[1:][used] - 1]
        if self.problem.objective is Objective.PERIOD:
            return float((last - first).max())
        return float(last.max() - first.min())


def simulate(schedule: Schedule) -> Timing:
    """The simulated timing of ``schedule``, including gradient averages over replicas.

    Raises InvalidScheduleError if the order can never run (an input is computed after its use, or
    never). The error names each rank that is stuck, and the op that cannot start.
    """
    timing = _simulated(schedule)
    if schedule.problem.profile.data_parallel is None:
        return timing
    return replace(timing, averages=averages(schedule, timing))


def _simulated(schedule: Schedule) -> Timing:
    if schedule.transfers or any(schedule.pairs):
        return simulate_transfers(schedule)
    problem, order = schedule.problem, schedule.order
    choice = choice_of(problem, order) if pulled(order) else None
    offsets = offsets_of(order)
    flat = np.concatenate(order).astype(np.int64)
    simulator = Simulator(problem, offsets)
    if not simulator.run(flat, choice):
        raise InvalidScheduleError(_stuck(flat, offsets, simulator.position))
    rows = [slice(*ends) for ends in pairwise(offsets.tolist())]
    return Timing(
        tuple(simulator.start[row] for row in rows),
        tuple(simulator.end[row] for row in rows),
        tuple(simulator.peak.tolist()),
        np.empty((0, 2)),
        beside=tuple(np.flatnonzero((row & KIND_MASK) >= _O).tolist() for row in order)
        if choice is not None
        else (),
    )


def _stuck(flat: IntArray, offsets: IntArray, position: IntArray) -> list[str]:
    """An error line for each rank that stopped before its last op, at ``position``."""
    bounds = zip(position.tolist(), pairwise(offsets.tolist()), strict=True)
    return [
        f"rank {rank} can never start {Op.unpack(int(flat[at]))} (its op {at - first}): its input "
        "never comes"
        for rank, (at, (first, stop)) in enumerate(bounds)
        if at < stop
    ]


def warm_up() -> None:
    """Load the kernel, so that no later call has to compile it.

    It is compiled now if this machine has not compiled it before.
    """
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0),), 1), 1)
    simulate(Schedule.of(problem, [[Op(OpKind.F, 0, 0)]], ""))


def timed(schedule: Schedule) -> Schedule:
    """A copy of ``schedule`` with its simulated timing."""
    return replace(schedule, timing=simulate(schedule))
