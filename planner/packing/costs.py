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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from pipeloom.ir.errors import InputError, show
from pipeloom.ir.formats.lengths_document import LengthsDocument
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds.general import critical_path, work
from pipeloom.solver.bounds.unlike import unlike_bounds
from pipeloom.solver.core.tolerances import ROUNDING

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
