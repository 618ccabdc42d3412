"""Times and sizes that a sequence adds to a microbatch, from a profile of one microbatch.

The profile was measured on a microbatch of n sequences of L tokens each. A share a of a stage's
time for an op (attention) is proportional to the square of the sequence length, the rest to the
number of tokens::

    time of a sequence of l tokens = t * ((1 - a) l / (n L) + a l^2 / (n L^2))

Memory and messages are proportional to tokens. In B, attention takes twice its time in F, and
matrix products take the same time as in F. A share a in F is hence 2 a / (1 + a) in B; W has no
attention.

:func:`refit` fits the costs to measured steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pipeloom.ir.errors import InputError, show
from pipeloom.ir.formats.lengths_document import LengthsDocument, parse_lengths
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.bounds.general import critical_path, work
from pipeloom.solver.bounds.unlike import unlike_bounds
from pipeloom.solver.core.tolerances import ROUNDING

from ..inputs.documents import Document, read_document
from ..inputs.problem_setup import ProfileLike, ProfileSource, check_alike

Microbatches: TypeAlias = list[list[int]]
"""The sequences of each microbatch, as indices into the batch."""
OP_TIMES = "t_f", "t_b", "t_w"
BY_TOKENS = "m_b", "m_w", "m_r", "m_o", "activation_bytes", "offload_bytes"


@dataclass(frozen=True)
class SequenceCosts:
    """The costs of the sequences of a batch in microbatches of ``problem``.

    ``problem``: the problem in which every microbatch equals that of the profile, which has
    ``tokens`` tokens. ``lengths``: tokens of each sequence, (n,). ``linear``, ``square``:
    milliseconds of F, B and W per token and per squared token, (3, S). ``held``: M_B and M_W per
    token, (2, S).
    """

    problem: Problem
    lengths: IntArray
    tokens: float
    linear: FloatArray
    square: FloatArray
    held: FloatArray

    @classmethod
    def of(cls, problem: Problem, document: LengthsDocument, where: str) -> SequenceCosts:
        """Return the costs for a problem and a lengths file. ``where``: the file's name in
        messages. Raises InputError for an invalid share of attention."""
        profile, length = problem.profile, document.reference_length
        shares = attention_of(profile, document.attention, where)
        tokens = float(length * (profile.micro_batch or 1))
        keys = (*OP_TIMES, "m_b", "m_w")
        figures = np.array([[getattr(s, key) for s in profile.stages] for key in keys]) / tokens
        linear, square = figures[:3] * (1 - shares), figures[:3] * shares / length
        return cls(problem, np.array(document.lengths), tokens, linear, square, figures[3:])

    @cached_property
    def times(self) -> FloatArray:
        """Milliseconds that each sequence adds to F, B and W of each stage, (3, S, n)."""
        tokens = self.lengths.astype(np.float64)
        return self.linear[:, :, None] * tokens + self.square[:, :, None] * tokens**2

    @cached_property
    def busiest(self) -> FloatArray:
        """Milliseconds that each sequence adds to the rank that has the most work in total,
        (n,)."""
        of_ranks = np.zeros((self.problem.ranks, len(self.lengths)))
        np.add.at(of_ranks, self.problem.owner[:, 0], self.times.sum(axis=0))
        return np.asarray(of_ranks[of_ranks.sum(axis=1).argmax()])

    def sizes_of(self, microbatches: Microbatches) -> FloatArray:
        """Return the tokens and the sum of squared sequence lengths of each microbatch, (M, 2)."""
        parts = [self.lengths[each].astype(np.float64) for each in microbatches]
        return np.array([[part.sum(), (part**2).sum()] for part in parts])

    def problem_of(self, microbatches: Microbatches) -> Problem:
        """Return the problem with ``microbatches``, which have the times and sizes of their
        sequences, instead of the profile's microbatch."""
        profile, count = self.problem.profile, len(microbatches)
        stages = tuple(
            StageProfile.of([self._part(s, each) for each in microbatches])
            for s in range(profile.num_stages)
        )
        found = replace(profile, stages=stages, micro_batch=None, microbatches=count)
        return replace(self.problem, profile=found, microbatches=count)

    def _part(self, s: int, sequences: list[int]) -> StageProfile:
        """Return stage ``s`` with the times and sizes of a microbatch that consists of
        ``sequences``, indices into the batch."""
        stage, share = self.problem.profile.stages[s], self.lengths[sequences].sum() / self.tokens
        times = self.times[:, s, sequences].sum(axis=1).tolist()
        sized = stage.scaled(float(share), BY_TOKENS)
        return replace(sized, **dict(zip(OP_TIMES, times, strict=True)))


def packing_bound(costs: SequenceCosts, replicas: int) -> float:
    """Return a lower bound on the slowest replica's cost over all packings and schedules, in
    milliseconds.

    Proof. Given a schedule of any packing, replace each op by the ops of its sequences, one after
    the other in the same time. Their inputs are available, since the packed op had all of them and
    a shorter message takes no longer; a sequence's memory is allocated no earlier and released no
    later than its microbatch's was. The result is a schedule, of the same cost, of the problem in
    which **each sequence is a microbatch of its own**, so that lower bounds of that problem hold
    for all packings. With several replicas, one replica has at least the average work of any rank,
    and one has the longest sequence.
    """
    apart = costs.problem_of([[i] for i in range(len(costs.lengths))])
    bounds = [work(apart).value / replicas, critical_path(apart).value]
    if replicas == 1 and apart.profile.unlike:
        bounds += [bound.value for bound in unlike_bounds(apart)]
    return max(bounds) * (1 - ROUNDING)


def attention_of(profile: Profile, given: Any, where: str) -> FloatArray:
    """Return the share of the time of F, B and W that is proportional to the squared sequence
    length, (3, S).

    ``given``: the share in F, as one number or one per stage, or an object with such values for
    t_f, t_b and t_w. ``where``: the file's name in messages. Raises InputError for anything else.
    """
    if isinstance(given, Mapping) and set(given) == set(OP_TIMES):
        return np.stack([_shares(profile, given[k], f"{where}: attention: {k}") for k in OP_TIMES])
    forward = _shares(profile, given, f"{where}: attention")
    return np.stack([forward, 2 * forward / (1 + forward), np.zeros(profile.num_stages)])


def _shares(profile: Profile, given: Any, where: str) -> FloatArray:
    """Return the share of each stage, (S,), from one number or one per stage. Raises InputError for
    anything else."""
    each = list(given) if isinstance(given, Sequence) else [given] * profile.num_stages
    sound = (isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x <= 1 for x in each)
    if len(each) != profile.num_stages or not all(sound):
        expected = f"a number from 0 to 1, or one per stage ({profile.num_stages})"
        raise InputError(f"{where}: expected {expected}, got {show(given)}")
    return np.array(each, dtype=np.float64)


if TYPE_CHECKING:
    from ..pack import Packing

ROUNDS, NEAR, FORMER = 20, 0.01, 0.01
"""``ROUNDS``: iterations of reweighting. ``NEAR``: errors below this share of the median time count
squared, larger ones by their absolute value. ``FORMER``: weight of the prior, the old costs, per
sample."""

Steps: TypeAlias = "Iterable[tuple[Packing, Schedule | Sequence[Schedule]]]"
Samples: TypeAlias = defaultdict[tuple[OpKind, int], list[tuple[float, float, float]]]
"""By kind of op and stage, a list of samples: tokens and sum of squared lengths, both relative to
those of the profile's microbatch, and the measured time in milliseconds."""


def refit(profile: ProfileLike, lengths: Document, steps: Steps) -> tuple[Profile, dict[str, Any]]:
    """Fit ``profile`` and ``lengths``, the arguments of :func:`pack`, to measured steps.

    ``steps``: pairs of a packing and the trace of its step (``Pipeline.gather_trace``), or a list
    of traces, one per replica. The time of each op is modeled as the sum of a term proportional to
    tokens and one proportional to the squared lengths. Both are nonnegative and fitted by least
    absolute errors, so that disturbed steps have little influence. If the microbatches do not
    determine both terms, the old costs decide. If a stage only ran BWs, their time is divided into
    B and W in the ratio of the old costs. The ratio of T_R to T_F is kept; T_BW and T_FB are
    removed, as :func:`pack` does not use them.

    Returns the profile with the fitted times, for the same microbatch as before, and the object of
    the lengths file with the fitted shares as ``attention``, one per stage and op. Raises
    InputError if the steps have another number of stages or microbatches, or were not measured.
    """
    document, where = read_document(lengths, "lengths")
    given, source = parse_lengths(document, where), ProfileSource.of(profile, None)
    found = source.stages
    check_alike(found, f"{source.where}: stages", "refit, whose costs are of one microbatch")
    times = np.array([[getattr(stage, key) for stage in found.stages] for key in OP_TIMES])
    shares = attention_of(found, given.attention, where)
    costs = np.stack([times * (1 - shares), times * shares], axis=2)
    samples = _samples(steps, found, given.reference_length)
    for stage in range(found.num_stages):
        _refit_stage(costs[:, stage], samples, stage)
    whole = costs.sum(axis=2)
    stages = tuple(map(_with_times, found.stages, whole.T.tolist()))
    shares = np.divide(costs[:, :, 1], whole, out=np.zeros_like(whole), where=whole > 0)
    attention = dict(zip(OP_TIMES, shares.tolist(), strict=True))
    return replace(found, stages=stages), document | {"attention": attention}


def _with_times(old: StageProfile, times: Sequence[float]) -> StageProfile:
    """Return the stage ``old`` with ``times`` as T_F, T_B and T_W. T_R is scaled in proportion to
    T_F."""
    again = old.t_r
    if again is not None:
        again = again * times[0] / old.t_f if old.t_f > 0 else times[0]
    t_f, t_b, t_w = times
    return replace(old, t_f=t_f, t_b=t_b, t_w=t_w, t_r=again, t_bw=None, t_fb=None)


def _samples(steps: Steps, profile: Profile, length: int) -> Samples:
    found, tokens = Samples(list), length * (profile.micro_batch or 1)
    for packing, given in steps:
        traces = [given] if isinstance(given, Schedule) else given
        if len(traces) != len(packing.replicas):
            expected = f"one trace a replica ({len(packing.replicas)})"
            raise InputError(f"steps: expected {expected}, got {len(traces)}")
        sizes = np.array(packing.lengths, dtype=np.float64)
        for rows, trace in zip(packing.replicas, traces, strict=True):
            _check(trace, profile.num_stages, len(rows))
            x = [float(sizes[row].sum()) / tokens for row in rows]
            y = [float((sizes[row] ** 2).sum()) / (tokens * length) for row in rows]
            for op, time in trace.op_times():
                j = op.microbatch
                found[op.kind, op.stage].append((x[j], y[j], time))
    return found


def _check(trace: Schedule, stages: int, microbatches: int) -> None:
    """Raise InputError if the trace has another number of stages or microbatches, or has no
    times."""
    problem = trace.problem
    if (problem.stages, problem.microbatches) != (stages, microbatches) or trace.timing is None:
        wanted = f"{stages} stages and {microbatches} microbatches"
        raise InputError(f"steps: expected a measured trace of {wanted}")


def _refit_stage(costs: FloatArray, samples: Samples, stage: int) -> None:
    """Fit the costs of one stage in place. ``costs``: the terms of F, B and W that are proportional
    to tokens and to squared lengths, (3, 2)."""
    for at, kind in enumerate((OpKind.F, OpKind.B, OpKind.W)):
        if rows := samples[kind, stage]:
            costs[at] = _fitted(np.array(rows), costs[at])
    whole = samples[OpKind.BW, stage]
    if whole and not samples[OpKind.B, stage]:
        known = costs[1:].sum(axis=0)
        shares = np.divide(costs[1:], known, out=np.full((2, 2), 0.5), where=known > 0)
        costs[1:] = _fitted(np.array(whole), known) * shares


def _fitted(rows: FloatArray, old: FloatArray) -> FloatArray:
    """Return the milliseconds per unit of tokens and per unit of squared lengths, (2,), fitted by
    least absolute errors (iteratively reweighted least squares).

    ``rows``: tokens, squared lengths and time of each sample, (N, 3), in the units of
    :data:`Samples`. ``old``: the former values, which are the prior.
    """
    sizes, times = rows[:, :2], rows[:, 2]
    usual = float(np.median(times))
    if usual <= 0:
        return np.zeros(2)
    expected = sizes @ old
    former = old * (usual / float(np.median(expected))) if (expected > 0).all() else old
    found, prior = former, FORMER * len(rows) * np.eye(2)
    for _ in range(ROUNDS):
        weights = 1 / np.maximum(np.abs(sizes @ found - times) / usual, NEAR)
        matrix = (sizes.T * weights) @ sizes + prior
        found = _not_negative(matrix, (sizes.T * weights) @ times + prior @ former)
    return found


def _not_negative(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Return the x >= 0, (2,), that minimizes x' A x / 2 - b' x, where A is ``matrix`` and b is
    ``right``."""
    found = np.asarray(np.linalg.solve(matrix, right))
    if (found >= 0).all():
        return found
    ends = np.diag(np.maximum(right, 0) / np.diag(matrix))
    return np.asarray(min(ends, key=lambda x: float(x @ matrix @ x / 2 - right @ x)))
