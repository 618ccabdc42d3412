"""Inputs of the list scheduler: arrays of the stages, and parameters that a search changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import cycle
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import RECOMPUTED
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.streams import streams_of
from ..core.tolerances import ROUNDING
from ..core.unlike import typical

STRICT = 1000.0  # an offset larger than any microbatch's place: a strict priority
# memory is small if a microbatch needs more than this share of the memory-time (memory times the
# time for which it is held) that a rank has per microbatch
CROWDED = 0.6
SHARES, EXTRA, PERIODS = (0.0, 0.95, 1.0, 1.05), (0.5, 1.0), (1, 2, 3, 4, 5, 6, 7)
"""With one stage per rank, possible gaps between F's in multiples of :attr:`Stages.meeting`,
multiples that are added to every n-th gap, and values of n."""
SLOPES = (0.7, 1.0, 1.5, 2.0, 3.0, np.inf)
"""With one stage per rank, possible differences between the ``AHEAD`` of a stage and of the next
one. Infinity means that each ``AHEAD`` is the number of microbatches that fit in memory."""

M_B, M_W, INTO_F, INTO_B = range(7, 11)
"""Rows of :attr:`Stages.table`, after those by :class:`OpKind`."""
KEY_F, KEY_B, AHEAD, RESERVE, DEFER, FILL, PATIENCE, KEEP, AGAIN, LEAD, STAY, GAP = range(12)
"""Rows of :attr:`ListParameters.theta`, up to ``LEAD``; ``STAY`` and ``GAP`` are further kinds of
moves."""
NEVER, BESIDE, EVER = range(3)
"""Whether a microbatch may keep its activations until its B, instead of being recomputed: never,
only if it leaves the memory free that is reserved for an R, or even if it uses that memory."""


class Stages(NamedTuple):
    """Arrays of the stages, for kernels: by stage, (S,), or by rank, (P,).

    If microbatches go in two directions, each direction has stages of its own, and S counts all of
    them.

    - ``table``: durations by :class:`OpKind`, then ``M_B``, ``M_W``, and the delays before F and
      before B, (11, S); (11, S, M) if microbatches are unlike.
    - ``owner``: the rank of each stage.
    - ``own``: ``own[offsets[r]:offsets[r + 1]]`` are the stages of rank r.
    - ``limit``: the memory limit of each rank, including the tolerance for rounding.
    - ``names``: the microbatches of each direction, (1 or 2, M).
    - ``level``: a stage's index among the stages of its rank.
    - ``work``: the work of each rank.
    - ``meeting``: the median over the stages of T_F + T_B and both delays; microbatches that start
      a multiple of it apart meet without waiting.
    - ``crowded``: whether memory is so small that it slows microbatches down.
    - ``below``: by stage, the number of microbatches that start while one is between F and B, if
      its rank works without pauses.
    - ``capacity``: by stage, the number of microbatches that fit on its rank, each with all stages
      there.
    """

    table: FloatArray
    owner: IntArray
    own: IntArray
    offsets: IntArray
    limit: FloatArray
    names: IntArray
    level: IntArray
    work: FloatArray
    meeting: float
    crowded: bool
    below: FloatArray
    capacity: FloatArray

    @classmethod
    def of(cls, problem: Problem) -> Stages:
        costs, names = Costs.of(problem), np.array(streams_of(problem), dtype=np.int64)
        table = _table(costs, names)
        owner = costs.owner[:, names[:, 0]].T.ravel()
        depth = np.tile(np.arange(problem.stages), len(names))
        rows = [np.flatnonzero(owner == rank) for rank in range(problem.ranks)]
        rows = [row[np.argsort(depth[row], kind="stable")] for row in rows]
        level = np.zeros(len(owner), dtype=np.int64)
        for row in rows:
            level[row] = np.arange(len(row))
        mean = table
        if problem.profile.unlike:
            mean = _table(Costs.of(typical(problem)), names)
        f, b, w, m_b, into_f, into_b = mean[[OpKind.F, OpKind.B, OpKind.W, M_B, INTO_F, INTO_B]]
        ways = f[:-1] + b[1:] + into_f[1:] + into_b[:-1]
        passed = (f + b + into_f + into_b).reshape(len(names), -1)
        stay = passed[:, ::-1].cumsum(axis=1)[:, ::-1].ravel() - into_f
        busy, limit = np.bincount(owner, f + b + w, problem.ranks), costs.limit * (1 + ROUNDING)
        microbatches = names.shape[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            needed = np.bincount(owner, m_b * stay, problem.ranks)
            crowded = bool((needed > CROWDED * busy.max() * limit).any())
            below = np.nan_to_num(stay / busy[owner], nan=0.0, posinf=microbatches)
            capacity = limit / np.bincount(owner, m_b, problem.ranks)
        return cls(
            table,
            owner,
            np.concatenate(rows).astype(np.int64),
            np.cumsum([0, *map(len, rows)]).astype(np.int64),
            limit,
            names,
            level,
            microbatches * busy,
            float(np.median(ways)) if len(ways) else 0.0,
            crowded,
            below,
            np.clip(np.floor(np.nan_to_num(capacity, nan=np.inf)), 1, microbatches)[owner],
        )


def _table(costs: Costs, names: IntArray) -> FloatArray:
    """Return the ``table`` of :class:`Stages`: durations, sizes and delays of the stages.

    ``names``: the microbatches of each direction, (1 or 2, M). If microbatches are equal, delays
    are those of the first microbatch of each direction.
    """
    if costs.m_b.ndim == 2:
        rows = *costs.durations, costs.m_b, costs.m_w, costs.into_f, costs.into_b
        return np.stack(rows)
    sizes = (np.tile(row, len(names)) for row in (*costs.durations, costs.m_b, costs.m_w))
    delays = (table[:, names[:, 0]].T.ravel() for table in (costs.into_f, costs.into_b))
    return np.stack([*sizes, *delays])


def recomputed(problem: Problem) -> FloatArray:
    """Return the memory that an R restores on each stage, (S,): M_B less what is kept until R."""
    costs = Costs.of(problem)
    return np.asarray(costs.m_b - costs.kept[RECOMPUTED])


class ListParameters(NamedTuple):
    """The heuristic parameters of the list scheduler.

    ``theta``, (10, S), has these rows:

    - ``KEY_F``, ``KEY_B``: offsets that are added to the keys of F's and B's, in microbatches; a
      rank runs the op with the lowest key first.
    - ``AHEAD``: the maximum number of microbatches between F and B.
    - ``RESERVE``: the memory that an F must leave free.
    - ``DEFER``: the maximum number of W's that wait on the rank while an F could run.
    - ``FILL``: a W runs if the next input arrives no earlier than this multiple of T_W from now.
    - ``PATIENCE``: a rank waits up to this multiple of T_F for an op with a lower key.
    - ``KEEP``: the maximum number of microbatches between F and B that keep their activations.
    - ``AGAIN``: the maximum number of microbatches that wait for their R.
    - ``LEAD``: how long before the input of B arrives the R may start, as a multiple of T_R.

    ``gap``: on a first stage, the minimum time from the start of one F to the start of the next,
    (streams x M,). ``entry``: the order in which microbatches enter, as positions in ``names``,
    (M,). ``stay``: whether a microbatch may keep its activations, as :data:`NEVER`, :data:`BESIDE`
    or :data:`EVER`, by stage and place in the order of entry, (S, M). ``keys``: the keys of
    microbatches for F (row 0) and for B (row 1) if they may overtake each other, (2, M).
    """

    theta: FloatArray
    gap: FloatArray
    entry: IntArray
    stay: npt.NDArray[np.int8]
    keys: FloatArray

    def copy(self) -> ListParameters:
        return ListParameters._make(array.copy() for array in self)


class ListKind(Enum):
    """Kinds of instances of the list scheduler.

    ONE_STAGE and SEVERAL_STAGES: stages per rank. REMAT: one stage per rank, with recomputation.
    UNLIKE: one stage per rank, with unlike microbatches. The values are :attr:`chances`.
    """

    ONE_STAGE = (0.0, 0.0, 0.1, 0.0, 0.1, 0.12, 0.13, 0.0, 0.0, 0.0, 0.0, 0.55)
    SEVERAL_STAGES = (0.18, 0.17, 0.13, 0.05, 0.1, 0.1, 0.09, 0.0, 0.0, 0.0, 0.0, 0.18)
    REMAT = (0.1, 0.0, 0.0, 0.0, 0.05, 0.08, 0.1, 0.1, 0.07, 0.1, 0.1, 0.3)
    UNLIKE = (0.2, 0.2, 0.05, 0.0, 0.15, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0)

    @property
    def chances(self) -> tuple[float, ...]:
        """The probabilities that a move changes each row of ``theta``, ``STAY`` and ``GAP``."""
        return self.value

    @property
    def overtakes(self) -> bool:
        """Whether microbatches may run in another order than the one in which they enter."""
        return self in (ListKind.REMAT, ListKind.UNLIKE)

    @classmethod
    def of(cls, stages: Stages, *, remat: bool, unlike: bool) -> ListKind:
        if stages.level.any():
            return cls.SEVERAL_STAGES
        return cls.UNLIKE if unlike else cls.REMAT if remat else cls.ONE_STAGE


def list_parameters(
    stages: Stages, kind: ListKind, rng: np.random.Generator, entries: Sequence[IntArray] = ()
) -> Iterator[ListParameters]:
    """Yield random parameters without end.

    They determine which ops go first, how W's fill gaps and how F's are spaced. If memory is small
    and microbatches are equal, every second result adds no offsets to keys, and spaces the F's by
    about a multiple of :attr:`Stages.meeting`. ``stages``: the stages with the values of the mean
    microbatch. ``entries``: possible orders of entry, (M,) each; if it is empty, microbatches enter
    in ascending order.
    """
    for entry in cycle(entries or (np.arange(stages.names.shape[1]),)):
        made = _plain(stages, entry)
        if kind is ListKind.UNLIKE:
            _with_keys(made, rng, entries)
        elif kind is ListKind.REMAT:
            _with_remat(made, stages, rng)
        elif kind is ListKind.ONE_STAGE:
            _warmed_up(made, stages, rng)
        else:
            _prioritized(made, stages, rng)
        yield made
        if stages.crowded and kind is not ListKind.UNLIKE:
            spaced = _plain(stages, entry)
            _space(spaced, stages, kind, rng)
            yield spaced


def _plain(stages: Stages, entry: IntArray) -> ListParameters:
    """Return parameters with which ops run in the order of entry, without further restrictions.

    ``entry``: the order of entry, (M,).
    """
    streams, microbatches = stages.names.shape
    number = len(stages.owner)
    theta = np.zeros((LEAD + 1, number))
    theta[[AHEAD, KEEP, AGAIN]] = microbatches
    theta[DEFER] = microbatches * number
    stay = np.full((number, microbatches), BESIDE, dtype=np.int8)
    keys = np.tile(np.arange(microbatches, dtype=np.float64), (2, 1))
    return ListParameters(theta, np.zeros(streams * microbatches), entry.copy(), stay, keys)


def _space(made: ListParameters, stages: Stages, kind: ListKind, rng: np.random.Generator) -> None:
    """Set the minimum time between F's in ``made`` to a random multiple of :attr:`Stages.meeting`.

    Microbatches that start a multiple of it apart meet without waiting. Other parameters are set to
    values that suit such schedules.
    """
    if kind is ListKind.SEVERAL_STAGES:
        turn = float(stages.work.max()) / len(made.entry)
        share = max(1, int(np.ceil(turn / stages.meeting))) + int(rng.integers(-1, 2))
        period = 1
        made.theta[RESERVE] = _higher(stages) * float(rng.integers(0, 2))
    else:
        share, period = rng.choice(SHARES), int(rng.choice(PERIODS))
        made.theta[AHEAD] = made.theta[KEEP] = stages.capacity
    made.theta[FILL] = rng.uniform(0.3, 1.3)
    made.theta[PATIENCE] = rng.uniform(0.0, 0.7)
    made.gap[:] = share * stages.meeting
    if period > 1:
        made.gap[period - 1 :: period] += rng.choice(EXTRA) * stages.meeting


def _prioritized(made: ListParameters, stages: Stages, rng: np.random.Generator) -> None:
    """Give the stages random priorities in ``made``, and space the F's that follow a warm-up.

    Stages with the same index among those of their ranks get the same priority.
    """
    levels, microbatches = int(stages.level.max()) + 1, len(made.entry)
    scale = float(rng.choice((0.0, 0.5, 2.0, STRICT)))
    offsets = scale * rng.permutation(2 * levels).reshape(2, levels).astype(np.float64)
    made.theta[[KEY_F, KEY_B]] = offsets[:, stages.level]
    room = float(stages.limit[stages.owner[0]] / max(stages.table[M_B, 0], 1e-30))
    warm = int(rng.uniform(0.3, 1.0) * min(room, microbatches))
    gap = made.gap.reshape(stages.names.shape)
    gap[:, warm:] = rng.uniform(0.7, 1.6) * float(stages.work.max()) / microbatches
    made.theta[RESERVE] = _higher(stages) * float(rng.integers(1, 3))
    made.theta[FILL] = rng.uniform(0.3, 1.0)
    made.theta[PATIENCE] = float(rng.choice((0.0, 0.2, 0.5)))


def _warmed_up(made: ListParameters, stages: Stages, rng: np.random.Generator) -> None:
    """Limit in ``made`` the number of microbatches between F and B on each stage.

    The limit either falls from stage to stage as in 1F1B, or is as high as memory allows. The
    parameters that decide when W's run are drawn at random.
    """
    stage, slope = np.arange(len(stages.owner)), float(rng.choice(SLOPES))
    warm = np.floor(1 + slope * stage[::-1]) if np.isfinite(slope) else stages.capacity
    made.theta[AHEAD] = np.minimum(warm, stages.capacity)
    made.theta[DEFER] = rng.choice((0, 1, len(made.entry))) * np.maximum(1, stage)
    made.theta[FILL] = rng.uniform(0.0, 1.2)
    made.theta[PATIENCE] = rng.uniform(0.0, 1.0)


def _with_remat(made: ListParameters, stages: Stages, rng: np.random.Generator) -> None:
    """Set parameters in ``made`` with which a microbatch keeps its activations if they fit.

    The other microbatches are recomputed.
    """
    microbatches = len(made.entry)
    made.theta[KEY_F] = -np.rint(stages.below * rng.uniform(0.0, 2.0))
    made.theta[KEEP] = stages.capacity
    made.theta[AGAIN] = rng.choice((microbatches, max(1, microbatches // 2), 2 * len(stages.owner)))
    made.theta[LEAD] = rng.uniform(0.0, 1.5)
    made.theta[DEFER] = rng.choice((0, 1, microbatches))
    made.theta[FILL] = rng.uniform(0.0, 1.2)
    made.theta[PATIENCE] = rng.uniform(0.0, 1.0)
    made.gap[:] = rng.choice((0.0, 0.5, 1.0)) * stages.meeting
    period = int(rng.integers(1, 6))
    made.gap[period - 1 :: period] += rng.choice((0.0, 0.5, 1.0)) * stages.meeting
    if rng.random() < 0.5:
        ends = int(stages.capacity[0])
        made.stay[:, :ends] = made.stay[:, microbatches - ends :] = EVER


def _with_keys(made: ListParameters, rng: np.random.Generator, entries: Sequence[IntArray]) -> None:
    """Set keys in ``made`` such that F's run in one of the orders ``entries``, drawn at random.

    The B's run in the same order or, with some probability, in one that is drawn independently.
    """
    microbatches = len(made.entry)
    made.entry[:] = np.arange(microbatches)
    made.keys[:] = np.argsort(entries[int(rng.integers(len(entries)))])
    if rng.random() < 0.3:
        made.keys[1] = np.argsort(entries[int(rng.integers(len(entries)))])
    made.theta[KEY_B] = rng.choice((0.0, -microbatches, -2.0, 2.0, -microbatches / 2))
    made.theta[DEFER] = rng.choice((0, 3, microbatches, 3 * microbatches))
    made.theta[PATIENCE] = rng.choice((0.0, 0.3, 0.7, 1.0))
    made.theta[FILL] = rng.choice((0.3, 0.7, 1.0))


def _higher(stages: Stages) -> FloatArray:
    """Return for each stage the sum of M_B over the later stages on the same rank, (S,)."""
    higher = np.empty(len(stages.owner))
    for s in range(len(higher)):
        later = (stages.owner == stages.owner[s]) & (stages.level > stages.level[s])
        higher[s] = stages.table[M_B, later].sum()
    return higher


class Moves(NamedTuple):
    """A description of how a search changes parameters of the list scheduler.

    Arrays have the rows of :attr:`ListParameters.theta`; ``chances`` also has ``STAY`` and ``GAP``.

    - ``chances``: the cumulative probabilities that a move changes each row, (12,).
    - ``whole``: whether the row is changed by whole multiples of ``step``; otherwise it is changed
      by any multiple, (10,).
    - ``step``: the unit in which each value is changed, (10, S).
    - ``least``, ``most``: the minimum and the maximum of each value, (10, S).
    - ``unit``: the unit in which gaps between F's are changed.
    - ``period``: some moves change every gap at this distance from the next, counted in gaps.
    - ``reordered``: the probability that a move changes the order of microbatches instead: their
      keys or, without keys, the order in which unlike microbatches enter.
    """

    chances: FloatArray
    whole: npt.NDArray[np.bool_]
    step: FloatArray
    least: FloatArray
    most: FloatArray
    unit: float
    period: int
    reordered: float

    @classmethod
    def of(cls, stages: Stages, kind: ListKind) -> Moves:
        number, microbatches = len(stages.owner), stages.names.shape[1]
        several = kind is ListKind.SEVERAL_STAGES
        whole = np.zeros(LEAD + 1, dtype=np.bool_)
        whole[[AHEAD, RESERVE, DEFER, KEEP, AGAIN]] = True
        step = np.ones((LEAD + 1, number))
        least, most = np.zeros_like(step), np.full_like(step, np.inf)
        least[[KEY_F, KEY_B]], least[AHEAD] = -np.inf, 1
        step[[FILL, LEAD]], step[PATIENCE] = 0.7, 0.3 if several else 0.7
        step[RESERVE] = 0.5 * stages.table[M_B]
        most[[AHEAD, AGAIN]], most[DEFER] = microbatches, 2 * microbatches
        most[KEEP] = stages.capacity
        if kind is ListKind.ONE_STAGE:
            most[AHEAD] = stages.capacity
        turn = float(stages.work.max()) / microbatches
        unit = stages.meeting if stages.crowded or not several else turn
        chances, period = np.cumsum(kind.chances), int(stages.capacity[0])
        reordered = 0.15 if kind is ListKind.REMAT else 0.55
        return cls(chances, whole, step, least, most, unit, period, reordered)
