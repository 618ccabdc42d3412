"""Costs of sequences, fitted again to steps that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.lengths_document import parse_lengths
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule

from ..inputs.documents import Document, read_document
from ..inputs.problem_setup import ProfileLike, ProfileSource, check_alike
from ..measured.rescaled import with_times
from .costs import OP_TIMES, attention_of

if TYPE_CHECKING:
    from ..pack import Packing

ROUNDS, NEAR, FORMER = 20, 0.01, 0.01
"""Of reweighting; errors below this share of the median time count by their squares; the weight of
the former costs, where a time that is off by all of the median has 1."""

Steps: TypeAlias = "Iterable[tuple[Packing, Schedule | Sequence[Schedule]]]"
Samples: TypeAlias = defaultdict[tuple[OpKind, int], list[tuple[float, float, float]]]
"""By kind and stage: tokens and squares of lengths, as shares of the reference's, and the time."""


def refit(profile: ProfileLike, lengths: Document, steps: Steps) -> tuple[Profile, dict[str, Any]]:
    """``profile`` and ``lengths``, as :func:`pack` takes them, by what measured steps took.

    ``steps``: pairs of a packing and the trace of its step (``Pipeline.gather_trace``), or traces,
    one a replica. The time of each op of a microbatch is fitted as the sum of one term that grows
    with tokens and one with the squares of its sequences' lengths, neither below 0, by least
    absolute errors: a step that was disturbed counts for little. Where microbatches do not tell the
    two apart the former costs do. Times of stages of which only BWs ran are shared as before. T_R
    is to T_F as it was; T_BW and T_FB are left out, as :func:`pack` plans without them.

    Returns the profile with times of the reference's microbatch, and the lengths file's object with
    these shares as ``attention``, one a stage of each op. Raises InputError where the steps are of
    other stages, or not measured.
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
    stages = tuple(
        with_times(replace(stage, t_bw=None, t_fb=None), *new)
        for stage, new in zip(found.stages, whole.T.tolist(), strict=True)
    )
    shares = np.divide(costs[:, :, 1], whole, out=np.zeros_like(whole), where=whole > 0)
    attention = dict(zip(OP_TIMES, shares.tolist(), strict=True))
    return replace(found, stages=stages), document | {"attention": attention}


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
    """Raises InputError where the trace is of another packing or profile, or has no times."""
    problem = trace.problem
    if (problem.stages, problem.microbatches) != (stages, microbatches) or trace.timing is None:
        wanted = f"{stages} stages and {microbatches} microbatches"
        raise InputError(f"steps: expected a measured trace of {wanted}")


def _refit_stage(costs: FloatArray, samples: Samples, stage: int) -> None:
    """``costs``: of F, B and W the terms by tokens and by squares, (3, 2), changed."""
    for at, kind in enumerate((OpKind.F, OpKind.B, OpKind.W)):
        if rows := samples[kind, stage]:
            costs[at] = _fitted(np.array(rows), costs[at])
    whole = samples[OpKind.BW, stage]
    if whole and not samples[OpKind.B, stage]:
        known = costs[1:].sum(axis=0)
        shares = np.divide(costs[1:], known, out=np.full((2, 2), 0.5), where=known > 0)
        costs[1:] = _fitted(np.array(whole), known) * shares


def _fitted(rows: FloatArray, old: FloatArray) -> FloatArray:
    """(2,): the terms of ``rows``, (N, 3), by least absolute errors: reweighted least squares."""
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
    """The least of x' A x / 2 - b' x over x >= 0, (2,)."""
    found = np.asarray(np.linalg.solve(matrix, right))
    if (found >= 0).all():
        return found
    ends = np.diag(np.maximum(right, 0) / np.diag(matrix))
    return np.asarray(min(ends, key=lambda x: float(x @ matrix @ x / 2 - right @ x)))
