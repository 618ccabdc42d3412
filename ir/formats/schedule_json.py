"""Reads and writes schedules as JSON. All faults of a file are reported together."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ..documents import Document
from ..documents.json_reader import read_document
from ..documents.struct import written
from ..documents.validation import validated
from ..errors import Fault, InputError
from ..model.ops import MICROBATCH_SHIFT, STAGE_SHIFT, IntArray, OpKind, fields_of
from ..model.placement import Passing, Placement, PlacementKind
from ..model.problem import Objective, Problem
from ..model.schedule import (
    Report,
    Schedule,
    Timing,
    Transfer,
    Updates,
    gap_between,
)
from .profiles import dump_profile
from .schedule_document import SCHEDULE, OpEntry, ScheduleDocument, TimedTransfer

_NAMES = [kind.name for kind in OpKind]
_KINDS = {name: number for number, name in enumerate(_NAMES)}


def load_schedule(given: Document) -> Schedule:
    """Return the timed schedule in ``given``: a file's path, or an object as in such a file.

    Raises InputError with every fault of the file.
    """
    return parse_schedule(*read_document(given, "schedule"))


def parse_schedule(data: dict[str, Any], where: str) -> Schedule:
    return schedule_of(validated(ScheduleDocument, data, where), where)


def schedule_of(document: ScheduleDocument, where: str) -> Schedule:
    """Return the schedule, with its timing, that a validated document describes.

    ``where``: the name of the file. Raises InputError if there are no ops, or if an op or an
    average ends before it starts.
    """
    _check_times(document, where)
    profile = document.profile
    order = tuple(map(_packed, document.order))
    objective = document.report.objective if document.report else Objective.PERIOD
    problem = Problem(
        profile,
        document.microbatches,
        _placement(document, order),
        document.memory_limit or (math.inf,) * profile.ranks,
        objective,
    )
    return Schedule(
        problem,
        order,
        tuple(map(_untimed, document.transfers or ())),
        document.report,
        _timing(document),
        tuple(map(tuple, document.pairs or ())),
        Updates(document.updates or "iteration"),
    )


def _check_times(document: ScheduleDocument, where: str) -> None:
    ops = [[(op["start"], op["end"]) for op in row] for row in document.order]
    averages = [[(one.start, one.end) for one in row] for row in document.averages or ()]
    wrong = [
        Fault.about(f"{key}[{rank}][{i}]: end", f"at least start ({start:g})", end, where)
        for key, rows in (("order", ops), ("averages", averages))
        for rank, row in enumerate(rows)
        for i, (start, end) in enumerate(row)
        if end < start
    ]
    if not any(document.order):
        wrong.append(Fault.about("order", "at least one op", document.order, where))
    if wrong:
        raise InputError(*wrong)


def _packed(row: list[OpEntry]) -> IntArray:
    """The ops of one rank in packed form (:mod:`..model.ops`), (number of ops,)."""
    packed = [
        op["microbatch"] << MICROBATCH_SHIFT | op["stage"] << STAGE_SHIFT | _KINDS[op["op"]]
        for op in row
    ]
    return np.array(packed, dtype=np.int64)


def _placement(document: ScheduleDocument, order: tuple[IntArray, ...]) -> Placement:
    """The placement that follows from the ranks of the ops in ``order``.

    If they contradict each other or the document, the verifier reports it, not this function.
    """
    owners = np.zeros((document.stages, document.microbatches), dtype=np.int64)
    for rank, row in enumerate(order):
        owners[fields_of(row)[1:]] = rank
    passing = Passing(document.passing)
    return Placement.of_ops(passing, document.ranks, owners, document.placement)


def _timing(document: ScheduleDocument) -> Timing:
    rows, transfers = document.order, document.transfers or ()
    return Timing(
        tuple(np.array([op["start"] for op in row]) for row in rows),
        tuple(np.array([op["end"] for op in row]) for row in rows),
        tuple((document.report and document.report.peak_memory) or ()),
        np.array([(one.start, one.end) for one in transfers]).reshape(-1, 2),
        beside=tuple([i for i, op in enumerate(row) if op["op"] in "OL"] for row in rows),
        averages=tuple(map(tuple, document.averages or ())),
    )


def _untimed(one: TimedTransfer) -> Transfer:
    return Transfer(*(getattr(one, field.name) for field in fields(Transfer)))


def timing_of(schedule: Schedule) -> Timing:
    """The timing of ``schedule``; if it has none, the simulated one."""
    from ..cost.simulator import simulate  # importing numba takes longer than reading most files

    return schedule.timing or simulate(schedule)


def dump_schedule(schedule: Schedule) -> dict[str, Any]:
    """The schedule as a JSON object; if it has no timing, it is simulated first."""
    problem, timing = schedule.problem, timing_of(schedule)
    document: dict[str, Any] = {
        "format": SCHEDULE,
        "version": 1,
        "passing": problem.placement.passing.value,
        "placement": _placement_name(problem),
        "ranks": problem.ranks,
        "stages": problem.stages,
        "microbatches": problem.microbatches,
        "profile": dump_profile(problem.profile),
        "memory_limit": written(problem.memory_limit),
        "order": [_dump_ops(schedule, timing, rank) for rank in range(problem.ranks)],
        "report": _dump_report(schedule, timing),
    }
    if problem.placement.passing is not Passing.ACTIVATIONS:
        document["transfers"] = [
            written(transfer) | {"start": start, "end": end}
            for transfer, (start, end) in zip(
                schedule.transfers, timing.transfers.tolist(), strict=True
            )
        ]
    if any(schedule.pairs):
        document["pairs"] = list(map(list, schedule.pairs))
    if any(timing.averages):
        document["averages"] = written(timing.averages)
    if schedule.updates is not Updates.ITERATION:
        document["updates"] = schedule.updates.value
    return document


def _placement_name(problem: Problem) -> str:
    """The name of the placement in files: its own name or its kind, or else "custom".

    The kinds place stages on all ranks. So a placement without a name of its own is "custom" if its
    highest rank is not the last rank of the problem.
    """
    placement = problem.placement
    whole = 1 + max(map(max, placement.table)) == problem.ranks
    return placement.name if whole or placement.own_name else PlacementKind.CUSTOM.value


def _dump_ops(schedule: Schedule, timing: Timing, rank: int) -> list[dict[str, Any]]:
    row = schedule.order[rank]
    kinds, stages, microbatches = (numbers.tolist() for numbers in fields_of(row))
    times = timing.start[rank].tolist(), timing.end[rank].tolist()
    return [
        {"op": _NAMES[kind], "stage": stage, "microbatch": microbatch, "start": start, "end": end}
        for kind, stage, microbatch, start, end in zip(
            kinds, stages, microbatches, *times, strict=True
        )
    ]


def _dump_report(schedule: Schedule, timing: Timing) -> dict[str, Any]:
    objective = schedule.problem.objective
    report = schedule.report or Report(objective, "")
    bound = report.lower_bound
    given = replace(
        report,
        objective=objective,
        period=timing.period,
        makespan=timing.makespan,
        bubble_rate=timing.bubble_rate(objective),
        gap=None if bound is None else gap_between(timing.cost(objective), bound),
        peak_memory=timing.peak_memory,
        iteration_time=timing.iteration_time(objective) if any(timing.averages) else None,
    )
    found = {key: written(value) for key, value in given.values().items()}
    if not any(timing.averages):
        del found["iteration_time"]
    return found
