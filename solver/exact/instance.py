"""Instances for exact solvers: ops whose order on ranks is to be chosen, and their constraints.

An :class:`Instance` is the input of all exact solvers: :mod:`.model` builds a CP-SAT model of it,
:mod:`.ilp` an integer program. Relaxations are instances, too. :func:`all_orders` has all orders of
a problem, of some of its ranks, or of some of its microbatches; :mod:`.schedule_window` the orders
of the ops in a part of a schedule.

**Streams and positions.** A *stream* is a set of equal microbatches that run every stage on the
same rank: all of them, those of one direction, or a single one if microbatches are unlike. A
*class* is the ops of one kind, stage and stream. Take any valid schedule and rename the k-th op of
each class as that of the k-th microbatch of the stream, keeping all times. Every dependency still
holds: when the k-th F of stage s starts, k + 1 microbatches have passed F(s-1, .), so the k-th of
these F(s-1, .) to end has ended at least a delay ago. The same holds for B after the B of the next
stage, B after F, and W after B. Durations, delays and sizes depend only on the class. So it
suffices to consider schedules in which each class runs in the order of the microbatches.

**Orders that memory decides.** On its rank a microbatch runs the F's of its stages upwards, then
the B's downwards. This is its *route*, along which the memory that it holds is known. Suppose that
a(i) runs before b(j) although i > j and a comes before b on the route. Then all microbatches j...i
have started a, and none has ended b. So (i - j) times the minimum that a microbatch holds between
the two, plus what i holds during a, fits into memory. If i - j is too large for that, b(j) comes
first.

**Some ranks.** In a schedule, the ops of some ranks satisfy all constraints of these ranks; between
two of these ops a microbatch takes at least the time of its route over the other ranks.

**Some microbatches.** Removing microbatches from a schedule leaves a valid schedule of the others,
which costs no more: ranks begin no earlier and end no later.

If a BW is faster than its B and W, their times are those of
:func:`pipeloom.solver.core.relaxations.unfused`, a relaxation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import FloatArray, IntArray, Op, OpKind, fields_of, pack
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem

from ..core.relaxations import unfused
from ..core.streams import streams_of
from ..core.tolerances import ROUNDING, counts_within

F, B, W, R = OpKind.F, OpKind.B, OpKind.W, OpKind.R
BoolArray = npt.NDArray[np.bool_]
Wait = tuple[int, int, float]
"""The constraint (i, k, time): op number k starts at least ``time`` after op number i starts."""


class OpClass(NamedTuple):
    """The kind and the stage of a class of ops, which with a stream determine the class.

    The ops of a class run in the order of their microbatches.
    """

    kind: OpKind
    stage: int


Learned = tuple[OpClass, OpClass, int, float]
"""The precedence (a, b, m, time): for all j, b(j + m) starts at least ``time`` after a(j) starts.

a(j) is the op of class a and microbatch j.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Instance:
    """N ops whose order on each rank is to be chosen, with the constraints on that order.

    Ops are numbered from 0, such that i < k in each wait (i, k, time). Arrays have shape (N,)
    unless noted otherwise. ``packed``, ``rank``, ``takes``: the packed ops, their ranks and their
    durations. ``waits``: dependencies and known orders, on one rank or between ranks. ``classes``:
    lists of ops that run in the order of the list. ``memory``: for each rank with n ops, a list of
    constraints (change, limit). ``change``, shape (n,), is the change of memory by each of the
    rank's ops; at the start of each F and R, the changes by this op and by all ops before it must
    sum to at most the limit. ``ready``, ``due``: the earliest start and the latest end of each op.
    ``times``: the durations and delays from which the ticks are computed, of any length. ``ranks``:
    P. ``entries``: ops of which at least one starts at 0; no such constraint if it is empty.

    ``objective``: the cost to minimize; None if there is no cost and only ``due`` limits the ends.
    ``until``: the span of a rank ends with its last op of this kind, W or B. ``optional``: for each
    R that may be left out, its F and the memory that the R saves between them. ``around``: for each
    rank, the packed ops that it runs, in a fixed order, before and after the ops of the instance;
    None if there are none.
    """

    packed: IntArray
    rank: IntArray
    takes: FloatArray
    waits: Sequence[Wait]
    classes: Sequence[Sequence[int]]
    memory: Mapping[int, Sequence[tuple[FloatArray, float]]]
    ready: FloatArray
    due: FloatArray
    times: FloatArray
    ranks: int
    entries: Sequence[int] = ()
    objective: Objective | None = None
    until: OpKind = W
    optional: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    around: Sequence[tuple[IntArray, IntArray]] | None = None

    @cached_property
    def kind(self) -> IntArray:
        return fields_of(self.packed)[0]

    @cached_property
    def number(self) -> dict[int, int]:
        """A map from each packed op to its number in the instance."""
        return {packed: i for i, packed in enumerate(self.packed.tolist())}

    def at(self, kind: OpKind, stage: int, microbatch: int) -> int:
        """The number in the instance of the op with this kind, stage and microbatch."""
        return self.number[Op(kind, stage, microbatch).packed]

    @property
    def horizon(self) -> float:
        """The sum of all durations and delays: a schedule without needless waits ends by then."""
        return float(self.takes.sum() + sum(gap - self.takes[i] for i, _, gap in self.waits))

    @cached_property
    def rank_ops(self) -> list[IntArray]:
        """For each rank, the numbers of its ops in ascending order."""
        return [np.flatnonzero(self.rank == rank) for rank in range(self.ranks)]

    @cached_property
    def weight_of(self) -> dict[int, int]:
        """A map from the number of a B to that of its W, for each B whose W is in the instance."""
        at = self.number
        weights = (self.packed - int(B) + int(W)).tolist()
        backwards = np.flatnonzero(self.kind == B).tolist()
        return {i: at[weights[i]] for i in backwards if weights[i] in at}

    def known(self, rank: int) -> BoolArray:
        """The known orders of the n ops of ``rank``, a mask of shape (n, n).

        Entry [i, k] is True if op ``rank_ops[rank][i]`` is known to run before op
        ``rank_ops[rank][k]``, and False if it runs later or the order is not known.
        """
        ops = self.rank_ops[rank]
        found = np.unpackbits(self._later[ops], axis=1, count=len(self.packed))[:, ops] > 0
        np.fill_diagonal(found, val=False)
        return found

    @cached_property
    def _later(self) -> npt.NDArray[np.uint8]:
        """For each op, a mask of the op itself and of all ops that must follow it because of waits.

        A row contains the N bits of an op's mask, eight in a byte: shape (N, ceil(N / 8)).
        """
        number = len(self.packed)
        at = np.arange(number)
        rows = np.zeros((number, (number + 7) // 8), dtype=np.uint8)
        rows[at, at >> 3] = 128 >> (at & 7)
        for i, k, _ in sorted(self.waits, reverse=True):
            rows[i] |= rows[k]
        return rows

    @cached_property
    def literals(self) -> int:
        """The number of literals that the CP-SAT model needs for undecided pairs of ops.

        Such a pair is two F's, two B's, an F and a B, or a W and an F.
        """
        found = 0
        for rank, ops in enumerate(self.rank_ops):
            kind, pairs = self.kind[ops], undecided(self.known(rank))
            found += int(pairs[np.ix_(kind != W, kind != W)].sum()) // 2
            found += int(pairs[np.ix_(kind == W, kind == F)].sum())
        return found


def undecided(known: BoolArray) -> BoolArray:
    """A symmetric mask of the pairs of ops whose order is not known, shape (n, n).

    ``known``: the known orders of n ops, as :meth:`Instance.known` returns them.
    """
    found = ~(known | known.T)
    np.fill_diagonal(found, val=False)
    return found


def all_orders(
    problem: Problem,
    *,
    ranks: Sequence[int] | None = None,
    streams: Sequence[Sequence[int]] | None = None,
    learned: Sequence[Learned] = (),
) -> Instance:
    """The instance with all orders of the ops of ``problem``, an input of exact solvers.

    The problem must pass activations, in one or two directions. ``ranks``: the ranks whose ops the
    instance contains, by default all. ``streams``: for each stream, the list of its microbatches
    that the instance contains, by default all. ``learned``: known precedences, which become waits;
    allowed only if there is a single stream.
    """
    builder = _Builder(
        unfused(problem),
        set(range(problem.ranks) if ranks is None else ranks),
        streams_of(problem) if streams is None else streams,
    )
    return builder.instance(learned)


def all_positions(problem: Problem) -> Instance:
    """The instance with all orders of all ops of ``problem``, for the exact solvers.

    Raises InputError if weights are passed.
    """
    if problem.placement.passing is not Passing.ACTIVATIONS:
        raise InputError(
            "exact solvers place stages on ranks: passing is "
            f"{problem.placement.passing.value}, expected activations"
        )
    return all_orders(problem)


class _Builder:
    """A builder of the instance that :func:`all_orders` returns; the arguments are the same."""

    def __init__(self, problem: Problem, ranks: set[int], streams: Sequence[Sequence[int]]) -> None:
        self._problem, self._ranks, self._streams = problem, ranks, streams
        costs = self._costs = Costs.of(problem)
        shape = costs.owner.shape
        durations = costs.durations[:3].reshape(3, shape[0], -1)
        self._times = np.broadcast_to(durations, (3, *shape))
        self._m_b, self._m_w = (
            np.broadcast_to(m.reshape(shape[0], -1), shape) for m in (costs.m_b, costs.m_w)
        )
        self._at: dict[tuple[OpKind, int, int], int] = {}
        for j in (j for stream in streams for j in stream):
            here = self._stages(j)
            for kind, row in ((F, here), (B, here[::-1]), (W, here[::-1])):
                self._at |= {(kind, s, j): len(self._at) + i for i, s in enumerate(row)}

    def _stages(self, j: int) -> list[int]:
        """The stages that microbatch j runs on the chosen ranks, in ascending order."""
        return [s for s, rank in enumerate(self._costs.owner[:, j].tolist()) if rank in self._ranks]

    def instance(self, learned: Sequence[Learned]) -> Instance:
        at, costs, problem = self._at, self._costs, self._problem
        packed = pack(Op(*name) for name in at)
        kind, stage, microbatch = fields_of(packed)
        takes = self._times[kind, stage, microbatch]
        classes = [
            [at[kind, s, j] for j in stream]
            for stream in self._streams
            for s in self._stages(stream[0])
            for kind in (F, B, W)
        ]
        waits = [*self._routes(), *self._decided()]
        waits += [(i, k, float(takes[i])) for row in classes for i, k in pairwise(row)]
        for a, b, m, way in learned:
            waits += [
                (at[a.kind, a.stage, j], at[b.kind, b.stage, j + m], way)
                for j in range(problem.microbatches - m)
            ]
        entries = [at[F, self._stages(stream[0])[0], stream[0]] for stream in self._streams]
        rank = costs.owner[stage, microbatch]
        return Instance(
            packed=packed,
            rank=rank,
            takes=takes,
            waits=waits,
            classes=classes,
            memory={r: self._memory(r, packed[rank == r]) for r in self._ranks},
            ready=np.zeros(len(at)),
            due=np.full(len(at), np.inf),
            times=np.concatenate([self._times.ravel(), costs.into_f.ravel(), costs.into_b.ravel()]),
            ranks=problem.ranks,
            entries=entries,
            objective=problem.objective,
        )

    def _routes(self) -> Iterator[Wait]:
        """Yield the waits between successive ops of each microbatch.

        Ops on ranks that are left out are not in the instance; their times are part of the delays.
        """
        costs, at, (f, b, _) = self._costs, self._at, self._times
        down = np.cumsum(f[:-1] + costs.into_f[1:], axis=0)
        back = np.cumsum((b[1:] + costs.into_b[:-1])[::-1], axis=0)[::-1]
        zeros = np.zeros((1, len(down.T)))
        down, back = np.concatenate([zeros, down]), np.concatenate([back, zeros])
        moment = {F: down, B: down[-1] + f[-1] + back}
        for j in (j for stream in self._streams for j in stream):
            here = self._stages(j)
            route = [*((F, s) for s in here), *((B, s) for s in reversed(here))]
            for (one, s), (next_, t) in pairwise(route):
                way = float(moment[next_][t, j] - moment[one][s, j])
                yield at[one, s, j], at[next_, t, j], way
            for s in here:
                yield at[B, s, j], at[W, s, j], float(b[s, j])

    def _decided(self) -> Iterator[Wait]:
        """Yield the orders that memory decides (:func:`decided`) as waits."""
        for stream, a, b, ahead in decided(self._problem, self._streams):
            own = self._streams[stream]
            takes = float(self._times[b.kind, b.stage, own[0]])
            if (a.kind, a.stage, own[0]) in self._at:
                for i, k in zip(own, own[ahead + 1 :], strict=False):
                    yield self._at[b.kind, b.stage, i], self._at[a.kind, a.stage, k], takes

    def _memory(self, rank: int, ops: IntArray) -> list[tuple[FloatArray, float]]:
        """The memory constraints of a rank: one on all memory, and one on M_B between F and B.

        The second follows from the first, but its sizes are often multiples of one size, which
        helps the solvers. Each constraint is a pair: the change of memory by each of ``ops``, shape
        (n,), and the limit. ``ops``: the packed ops of the rank. Returns an empty list if all
        microbatches fit in memory.
        """
        kind, stage, microbatch = fields_of(ops)
        m_b, m_w = self._m_b[stage, microbatch], self._m_w[stage, microbatch]
        limit = float(self._costs.limit[rank]) * (1 + ROUNDING)
        if m_b[kind == F].sum() <= limit:
            return []
        change = np.select([kind == F, kind == B], [m_b, m_w - m_b], -m_w)
        return [(np.select([kind == F, kind == B], [m_b, -m_b], 0.0), limit), (change, limit)]


def decided(
    problem: Problem, streams: Sequence[Sequence[int]]
) -> Iterator[tuple[int, OpClass, OpClass, int]]:
    """Yield orders that memory decides, as (stream, a, b, n).

    Memory allows a(i) to run before b(j) only if i - j <= n. Here ``stream`` is an index in
    ``streams``, and a(i) and b(i) are the ops of classes a and b and of the i-th microbatch of that
    stream. The two classes are on one rank, and each microbatch runs a before b. If b is a class of
    W's, a is one of F's, and the M_W held until these W's run counts; M_W held until other W's run
    does not.
    """
    costs = Costs.of(problem)
    shape = costs.owner.shape
    m_b, m_w = (np.broadcast_to(m.reshape(shape[0], -1), shape) for m in (costs.m_b, costs.m_w))
    for rank, (n, stream) in product(range(problem.ranks), enumerate(streams)):
        own, j = np.flatnonzero(costs.owner[:, stream[0]] == rank).tolist(), stream[0]
        limit = float(costs.limit[rank]) * (1 + ROUNDING)
        route = [*(OpClass(F, s) for s in own), *(OpClass(B, s) for s in reversed(own))]
        steps = np.array([m_b[s, j] if kind is F else -m_b[s, j] for kind, s in route])
        after = np.cumsum(steps)  # memory that a microbatch holds after each op of its route
        for at, a in enumerate(route):
            room = limit - float(after[at] - min(0.0, steps[at]))
            pairs = [(b, float(after[at:to].min())) for to, b in enumerate(route[at + 1 :], at + 1)]
            for t in own if a.kind is F else ():
                done = route.index(OpClass(B, t))
                least = min(float(after[at:done].min()), float(after[done:].min() + m_w[t, j]))
                pairs.append((OpClass(W, t), least))
            for b, least in pairs:
                yield n, a, b, int(counts_within(room, max(0.0, least), len(stream)))
