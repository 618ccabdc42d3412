"""Costs of sequences, fitted again to steps that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.packing_document import OP_TIMES, parse_lengths
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted

from ..inputs.documents import Document, read_document
from ..inputs.problem_setup import ProfileLike, ProfileSource, check_alike
from ..measured.rescaled import with_times
from .sequence_costs import attention_of

if TYPE_CHECKING:
    from ..pack import Packing

ROUNDS, NEAR, FORMER = 20, 0.01, 0.01
"""Of reweighting; errors below this share of the median time count by their squares; the weight of
the former costs, where a time that is off by all of the median has 1."""

Steps: TypeAlias = "Iterable[tuple[Packing, Schedule | Sequence[Schedule]]]"
Samples: TypeAlias = "defaultdict[tuple[OpKind, int], list[tuple[float, float, float]]]"
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
    tokens = given.reference_length * (found.micro_batch or 1)
    samples = _samples(steps, found.num_stages, tokens, given.reference_length)
    times = np.array([[getattr(stage, key) for stage in found.stages] for key in OP_TIMES])
    shares = attention_of(found, given, where)
    costs = np.stack([times * (1 - shares), times * shares], axis=2)
    for stage in range(found.num_stages):
        costs[:, stage] = _of_stage(costs[:, stage], samples, stage)
    whole = costs.sum(axis=2)
    rows = (dict(zip(OP_TIMES, column, strict=True)) for column in whole.T.tolist())
    bare = (replace(stage, t_bw=None, t_fb=None) for stage in found.stages)
    stages = tuple(with_times(s, **new) for s, new in zip(bare, rows, strict=True))
    shares = np.divide(costs[:, :, 1], whole, out=np.zeros_like(whole), where=whole > 0)
    attention = dict(zip(OP_TIMES, shares.tolist(), strict=True))
    kept = {key: value for key, value in document.items() if key != "model"}
    return replace(found, stages=stages), kept | {"attention": attention}


def _samples(steps: Steps, stages: int, tokens: float, length: int) -> Samples:
    found: Samples = defaultdict(list)
    for packing, given in steps:
        traces = [given] if isinstance(given, Schedule) else given
        if len(traces) != len(packing.replicas):
            raise InputError(
                f"steps: expected one trace a replica ({len(packing.replicas)}), got {len(traces)}"
            )
        sizes = np.array(packing.lengths, dtype=np.float64)
        for rows, trace in zip(packing.replicas, traces, strict=True):
            _check(trace, stages, len(rows))
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
        wanted = f"{counted(stages, 'stage')} and {counted(microbatches, 'microbatch')}"
        got = f"{counted(problem.stages, 'stage')} and {problem.microbatches}"
        raise InputError(
            f"steps: expected a measured trace of {wanted}, got {got}"
            f"{' without times' if trace.timing is None else ''}"
        )


def _of_stage(old: FloatArray, samples: Samples, stage: int) -> FloatArray:
    """(3, 2): of F, B and W the terms by tokens and by squares; ``old``: the former ones."""
    found = old.copy()
    for at, kind in enumerate((OpKind.F, OpKind.B, OpKind.W)):
        if rows := samples.get((kind, stage)):
            found[at] = _fitted(np.array(rows, dtype=np.float64), old[at])
    whole = samples.get((OpKind.BW, stage))
    if whole and not samples.get((OpKind.B, stage)):
        both, known = _fitted(np.array(whole), old[1:].sum(axis=0)), old[1:].sum(axis=0)
        part = np.divide(old[1], known, out=np.full(2, 0.5), where=known > 0)
        found[1], found[2] = both * part, both * (1 - part)
    return found


def _fitted(rows: FloatArray, old: FloatArray) -> FloatArray:
    """(2,): the terms of ``rows``, (N, 3), by least absolute errors: reweighted least squares."""
    sizes, times = rows[:, :2], rows[:, 2]
    usual = float(np.median(times))
    if usual <= 0:
        return np.zeros(2)
    expected = sizes @ old
    former = old * (usual / float(np.median(expected))) if (expected > 0).all() else old
    found: FloatArray = former
    prior = FORMER * len(rows) * np.eye(2)
    for _ in range(ROUNDS):
        weights = 1 / np.maximum(np.abs(sizes @ found - times) / usual, NEAR)
        matrix = (sizes.T * weights) @ sizes + prior
        found = _not_negative(matrix, (sizes.T * weights) @ times + prior @ former)
    return found


def _not_negative(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """The least of x' A x / 2 - b' x over x >= 0, (2,)."""
    found = np.asarray(np.linalg.solve(matrix, right), dtype=np.float64)
    if (found >= 0).all():
        return found
    ends = np.diag(np.maximum(right, 0) / np.diag(matrix))
    values = [float(x @ matrix @ x / 2 - right @ x) for x in ends]
    return np.asarray(ends[int(np.argmin(values))])
