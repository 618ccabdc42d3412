"""Times and sizes that a sequence adds to a microbatch, from a profile of one microbatch.

The profile was measured on a microbatch of n sequences of L tokens each. Of a stage's time for an
op the share a grows with the square of each sequence's length (attention), all else with tokens::

    time of a sequence of l tokens = t * ((1 - a) l / (n L) + a l^2 / (n L^2))

Memory and what is sent grow with tokens. Of forwards a is given, or the model's arithmetic gives
it; B's attention takes twice as long as F's, its products as long as F's, so that a share a of F
is 2 a / (1 + a) of B; W has no attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.packing_document import OP_TIMES, LengthsDocument
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.units import counted

from ..inputs.documents import naming
from ..models.layers import work_of
from ..models.reading import read_model
from ..models.run import TrainingRun

_BY_TOKENS = ("m_b", "m_w", "m_r", "m_o", "activation_bytes", "offload_bytes")
_OPS = (OpKind.F, OpKind.B, OpKind.W)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceCosts:
    """The costs of sequences of ``lengths``, (n,), in microbatches of ``problem``.

    ``problem``: with the profile's own microbatch in place of each, which has ``tokens``.
    ``linear``, ``square``: (3, S), of F, B and W: milliseconds a token, and a token squared.
    """

    problem: Problem
    lengths: IntArray
    tokens: float
    linear: FloatArray
    square: FloatArray

    @classmethod
    def of(cls, problem: Problem, document: LengthsDocument, where: str) -> SequenceCosts:
        """Raises InputError where the attention's share is not told, or not for each stage."""
        profile = problem.profile
        shares = attention_of(profile, document, where)
        length, tokens = document.reference_length, float(document.reference_length)
        tokens *= profile.micro_batch or 1
        times = np.array([[getattr(s, key) for s in profile.stages] for key in OP_TIMES])
        linear, square = times * (1 - shares) / tokens, times * shares / (tokens * length)
        return cls(problem, np.array(document.lengths), tokens, linear, square)

    @property
    def times(self) -> FloatArray:
        """(3, S, n): milliseconds of F, B and W that each sequence adds."""
        tokens = self.lengths.astype(np.float64)
        return self.linear[:, :, None] * tokens + self.square[:, :, None] * tokens**2

    def of_ranks(self) -> FloatArray:
        """(P, n): milliseconds that each sequence keeps each rank."""
        owner = self.problem.owner[:, 0]
        found = np.zeros((self.problem.ranks, len(self.lengths)))
        np.add.at(found, owner, self.times.sum(axis=0))
        return found

    def problem_of(self, microbatches: Sequence[Sequence[int]]) -> Problem:
        """The problem whose microbatches are these sequences."""
        profile, times = self.problem.profile, self.times
        bins = [np.array(each, dtype=np.int64) for each in microbatches]
        sums = np.stack([times[:, :, each].sum(axis=2) for each in bins], axis=2)
        share = [float(self.lengths[each].sum()) / self.tokens for each in bins]
        stages = tuple(
            StageProfile.of([_scaled(stage, sums[:, s, j], share[j]) for j in range(len(bins))])
            for s, stage in enumerate(profile.stages)
        )
        number = len(bins)
        found = replace(profile, stages=stages, micro_batch=None, microbatches=number)
        return replace(self.problem, profile=found, microbatches=number)


def _scaled(stage: StageProfile, times: FloatArray, share: float) -> StageProfile:
    """The stage of a microbatch with these times of F, B and W, and ``share`` of its tokens."""
    f, b, w = map(float, times)
    changed: dict[str, Any] = {
        key: size * share for key in _BY_TOKENS if (size := getattr(stage, key)) is not None
    }
    return replace(stage, t_f=f, t_b=b, t_w=w, **changed)


def attention_of(profile: Profile, document: LengthsDocument, where: str) -> FloatArray:
    """(3, S): of F, B and W the share of time that grows with the square of the length.

    Raises InputError where it is not told, or not for each stage.
    """
    given = document.attention
    if (given is None) == (document.model is None):
        raise InputError(
            f"{where}: attention: {'missing; ' if given is None else ''}expected the share of a "
            "forward that is attention, or model, not both: a model's arithmetic has it"
        )
    if document.model is not None:
        with naming(where):
            return _of_model(profile, document)
    if isinstance(given, dict):
        return np.stack(
            [_each(profile, given[key], f"{where}: attention: {key}") for key in OP_TIMES]
        )
    forward = _each(profile, given, f"{where}: attention")
    return np.stack([forward, 2 * forward / (1 + forward), np.zeros(profile.num_stages)])


def _each(profile: Profile, given: Any, where: str) -> FloatArray:
    """(S,): the share of each stage. Raises InputError."""
    found = np.array(given, dtype=np.float64)
    if found.ndim and len(found) != profile.num_stages:
        raise InputError(
            f"{where}: expected a number, or one a stage ({profile.num_stages}), got "
            f"{counted(len(found), 'number')}"
        )
    return np.broadcast_to(found, profile.num_stages)


def _of_model(profile: Profile, document: LengthsDocument) -> FloatArray:
    """Shares by FLOPs: what is more at the reference length than in proportion at half of it."""
    long = document.reference_length
    short = max(1, long // 2)
    if long == short:
        return np.zeros((3, profile.num_stages))
    whole, half = (_flops(document, profile.num_stages, length) for length in (long, short))
    square = (whole / long - half / short) / (long - short)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(whole > 0, np.clip(square * long**2 / whole, 0, 1), 0.0))


def _flops(document: LengthsDocument, stages: int, length: int) -> FloatArray:
    """(3, S): FLOPs of F, B and W of one sequence of ``length``, layers dealt evenly."""
    assert document.model is not None
    model = read_model(document.model, "model")
    run = TrainingRun.of({"pp": stages, "gpus": stages, "seq": length}, model)
    rows = [[sum(layer.flops(op) for layer in stage) for op in _OPS]
            for stage in work_of(model, run).stages]  # fmt: skip
    return np.array(rows).T
