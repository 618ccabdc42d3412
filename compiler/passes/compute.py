"""The first pass: from a schedule to a program in which every rank only computes its ops in
order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeloom.ir.cost.remat import choice_of, pulled
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.ops import IntArray, Op, OpKind, fields_of
from pipeloom.ir.model.program import Compute, Program
from pipeloom.ir.model.schedule import Schedule, Transfer
from pipeloom.ir.model.transfers import previous
from pipeloom.ir.units import counted


def compute(schedule: Schedule) -> Program:
    """The program with the schedule's ops and no messages; the program's schedule has simulated
    times.

    Raises InvalidScheduleError if ops are missing, repeated or misplaced or can never run, or if a
    weight transfer starts on a rank that does not have the tensor.
    """
    check_complete(schedule)
    _check_joined(schedule.transfers)
    schedule = timed(schedule)
    rows = tuple(
        tuple(Compute(op) for op in schedule.ops(rank)) for rank in range(len(schedule.order))
    )
    return Program(schedule, rows, tuple(() for _ in rows))


def check_complete(schedule: Schedule) -> None:
    """Raise InvalidScheduleError unless the schedule has exactly the ops that it needs.

    Each (stage, microbatch) needs one F and either one BW or one B and one W, on the rank on which
    it is placed. It may have one R, or one O and one L.
    """
    problem = schedule.problem
    violations = []
    counts = np.zeros((len(OpKind), problem.stages, problem.microbatches), dtype=np.int64)
    owner = problem.owner
    if len(schedule.order) != problem.ranks:
        raise InvalidScheduleError(
            [f"{counted(len(schedule.order), 'order')} for {counted(problem.ranks, 'rank')}"]
        )
    for rank, ops in enumerate(schedule.order):
        kind, stage, microbatch = fields_of(ops)
        inside = (stage < problem.stages) & (microbatch < problem.microbatches)
        np.add.at(counts, (kind[inside], stage[inside], microbatch[inside]), 1)
        misplaced = ~inside
        misplaced[inside] = owner[stage[inside], microbatch[inside]] != rank
        violations += [
            f"rank {rank}: {Op.unpack(op)} does not belong there" for op in ops[misplaced].tolist()
        ]
    violations += _miscounted(counts)
    if violations:
        raise InvalidScheduleError(violations)
    if pulled(schedule.order):
        choice_of(problem, schedule.order)


def _miscounted(counts: IntArray) -> list[str]:
    f, b, w, bw = counts[:4]
    wrong = (f != 1) | (b != w) | (b + bw != 1)
    return [
        f"stage {s}, microbatch {j}: expected one F and either one BW or one B and one W, got "
        + ", ".join(f"{counts[kind, s, j]} {kind.name}" for kind in OpKind if kind <= OpKind.BW)
        for s, j in np.argwhere(wrong).tolist()
    ]


def _check_joined(transfers: Sequence[Transfer]) -> None:
    """Raise InvalidScheduleError if a transfer starts on a rank where its tensor is not.

    It must start on the rank to which the previous transfer of the same copy went, and end on
    another rank.
    """
    violations = []
    for i, (transfer, earlier) in enumerate(zip(transfers, previous(transfers), strict=True)):
        name = f"transfers[{i}] ({transfer.kind.value} {transfer.stage} copy {transfer.copy})"
        if transfer.source == transfer.target:
            violations.append(f"{name}: expected two ranks, got {transfer.source} twice")
        elif earlier is not None and (there := transfers[earlier].target) != transfer.source:
            violations.append(f"{name}: leaves rank {transfer.source}, its copy is on rank {there}")
    if violations:
        raise InvalidScheduleError(violations)
