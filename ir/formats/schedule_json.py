"""Schedules as JSON: reading with every error of the file at once, and writing."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from ..model.ops import Op, OpKind, pack
from ..model.placement import Passing, Placement
from ..model.problem import Objective, Problem
from ..model.profile import Profile
from ..model.schedule import (
    Averaged,
    Report,
    Schedule,
    Status,
    Timing,
    Transfer,
    TravelKind,
    Updates,
)
from ..units import counted
from .json_reader import Reader, is_amount, is_count, read_json
from .profile_json import dump_profile, finite, per_rank, read_profile

SCHEDULE = "pipeloom.schedule"
# stages times microbatches; more would exhaust memory
MOST_PAIRS = 20_000_000


def load_schedule(path: str) -> Schedule:
    """Reads a schedule, its recorded times included. Raises InputError with every error found."""
    return parse_schedule(read_json(path), path)


def parse_schedule(data: dict[str, Any], where: str) -> Schedule:
    errors: list[str] = []
    reader = Reader(data, where, errors)
    reader.format(SCHEDULE)
    profile = read_profile(reader.child("profile"))
    reader.finish()  # all that follows counts on the profile's sizes
    microbatches = reader.count(
        "microbatches", least=1, most=MOST_PAIRS // max(1, profile.num_stages)
    )
    limit = per_rank(reader, "memory_limit", profile.ranks)
    for key, value in (("ranks", profile.ranks), ("stages", profile.num_stages)):
        if reader.count(key) != value and is_count(reader.data.get(key)):
            reader.wrong(key, reader.data[key], f"{value}, as in its profile")
    rows = _rows(reader, profile.ranks)
    passing = _choice(reader, "passing", Passing)
    objective, report, peak_memory = _report(reader)
    transfers, travel_times = _transfers(reader)
    pairs = _pairs(reader, rows)
    averages = _averages(reader, profile)
    updates = _choice(reader, "updates", Updates) if reader.has("updates") else Updates.ITERATION
    reader.finish()
    placement = _placement(reader, passing, rows, profile, microbatches)
    reader.finish()
    problem = Problem(
        profile, microbatches, placement, limit or (math.inf,) * profile.ranks, objective
    )
    timing = Timing(
        tuple(np.array([start for _, start, _ in row]) for row in rows),
        tuple(np.array([end for _, _, end in row]) for row in rows),
        peak_memory,
        np.array(travel_times).reshape(-1, 2),
        beside=tuple([i for i, (op, _, _) in enumerate(row) if op.kind.copies] for row in rows),
        averages=averages,
    )
    order = tuple(pack(op for op, _, _ in row) for row in rows)
    return Schedule(problem, order, transfers, report, timing, pairs, updates)


_Row = list[tuple[Op, float, float]]


def _rows(reader: Reader, ranks: int) -> list[_Row]:
    lists = reader.items("order")
    if not isinstance(reader.data.get("order"), list):
        return []
    if len(lists) != ranks:
        reader.wrong(
            "order", f"{counted(len(lists), 'list')}", f"{counted(ranks, 'list')}, one a rank"
        )
    elif not any(lists):
        reader.wrong("order", lists, "at least one op")
    return [
        [
            _row(Reader(entry, f"{reader.where}: order[{rank}][{i}]", reader.errors))
            for i, entry in enumerate(_list(reader, f"order[{rank}]", ops))
        ]
        for rank, ops in enumerate(lists)
    ]


def _list(reader: Reader, key: str, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    reader.wrong(key, value, "a list of ops")
    return []


def _row(reader: Reader) -> tuple[Op, float, float]:
    kind = reader.get(
        "op",
        "F, B, W, BW, R, O or L",
        lambda v: isinstance(v, str) and v in OpKind.__members__,
        "F",
    )
    op = Op(OpKind[kind], reader.count("stage"), reader.count("microbatch"))
    start, end = reader.number("start"), reader.number("end")
    if end < start:
        reader.wrong("end", end, f"at least start ({start:g})")
    return op, start, end


E = TypeVar("E", bound=Enum)


def _choice(reader: Reader, key: str, choices: type[E]) -> E:
    names = [choice.value for choice in choices]
    return choices(reader.get(key, " or ".join(names), lambda value: value in names, names[0]))


def _report(reader: Reader) -> tuple[Objective, Report | None, tuple[float, ...]]:
    """The objective, the report, and the peak memory of each rank where it is recorded."""
    if not reader.has("report"):
        return Objective.PERIOD, None, ()
    report = reader.child("report")
    objective = (
        _choice(report, "objective", Objective) if report.has("objective") else Objective.PERIOD
    )
    peak_memory = report.items("peak_memory") if report.has("peak_memory") else []
    if not all(map(is_amount, peak_memory)):
        report.wrong("peak_memory", peak_memory, "a list of finite numbers >= 0, one a rank")
        peak_memory = []
    return (
        objective,
        Report(
            objective=objective,
            family=report.optional_text("family") or "",
            status=_choice(report, "status", Status) if report.has("status") else Status.FEASIBLE,
            lower_bound=report.optional_number("lower_bound"),
            bound_name=report.optional_text("bound_name"),
            solver=report.optional_text("solver"),
            solve_seconds=report.optional_number("solve_seconds"),
            seed=report.optional_count("seed"),
        ),
        tuple(map(float, peak_memory)),
    )


def _placement(
    reader: Reader, passing: Passing, rows: list[_Row], profile: Profile, microbatches: int
) -> Placement:
    """The placement that the order shows; what the order breaks is left to the verifier."""
    stages = profile.num_stages
    owners = np.zeros((stages, microbatches), dtype=np.int64)
    for rank, row in enumerate(rows):
        for op, _, _ in row:
            if op.stage >= stages or op.microbatch >= microbatches:
                reader.fail(
                    f"{reader.where}: order[{rank}]: {op} is outside {counted(stages, 'stage')} "
                    f"and {counted(microbatches, 'microbatch')}"
                )
            else:
                owners[op.stage, op.microbatch] = rank
    return Placement.of_ops(passing, profile.ranks, owners)


def _transfers(reader: Reader) -> tuple[tuple[Transfer, ...], list[tuple[float, float]]]:
    transfers, times = [], []
    for i, entry in enumerate(reader.items("transfers") if reader.has("transfers") else []):
        item = Reader(entry, f"{reader.where}: transfers[{i}]", reader.errors)
        kind = _choice(item, "tensor", TravelKind)
        numbers = {key: item.count(key) for key in ("stage", "copy", "after", "before")}
        numbers["room"] = item.count("room") if item.has("room") else 0
        if item.has("blocks"):
            numbers["blocks"] = item.count("blocks")
        transfers.append(
            Transfer(kind, source=item.count("from"), target=item.count("to"), **numbers)
        )
        times.append((item.number("start"), item.number("end")))
    return tuple(transfers), times


def _averages(reader: Reader, profile: Profile) -> tuple[tuple[Averaged, ...], ...]:
    """When ranks average which stage; () where nothing is said of it."""
    if not reader.has("averages"):
        return ()
    lists = reader.items("averages")
    if len(lists) != profile.ranks or not all(isinstance(row, list) for row in lists):
        reader.wrong("averages", lists, f"{counted(profile.ranks, 'list')}, one a rank")
        return ()
    return tuple(
        tuple(
            _averaged(Reader(entry, f"{reader.where}: averages[{r}][{i}]", reader.errors), profile)
            for i, entry in enumerate(row)
        )
        for r, row in enumerate(lists)
    )


def _averaged(reader: Reader, profile: Profile) -> Averaged:
    stage, start, end = reader.count("stage"), reader.number("start"), reader.number("end")
    if stage >= profile.num_stages:
        reader.wrong("stage", stage, f"a stage from 0 to {profile.num_stages - 1}")
    if end < start:
        reader.wrong("end", end, f"at least start ({start:g})")
    return Averaged(stage, start, end)


def _pairs(reader: Reader, rows: list[_Row]) -> tuple[tuple[int, ...], ...]:
    """Where an F begins that runs at once with the BW after it; () where there is none."""
    if not reader.has("pairs"):
        return ()
    lists = reader.items("pairs")
    if len(lists) != len(rows) or not all(map(_are_places, lists, rows)):
        reader.wrong(
            "pairs", lists, f"{counted(len(rows), 'list')}, one a rank, of places in its order"
        )
        return ()
    return tuple(tuple(entry) for entry in lists)


def _are_places(places: Any, row: _Row) -> bool:
    return isinstance(places, list) and all(is_count(at) and 0 <= at < len(row) for at in places)


def _simulated(schedule: Schedule) -> Timing:
    from ..cost.simulator import simulate  # numba takes longer to import than most files to read

    return simulate(schedule)


def dump_schedule(schedule: Schedule) -> dict[str, Any]:
    """The schedule as a JSON object, simulated first where it has no timing yet."""
    problem, timing = schedule.problem, schedule.timing or _simulated(schedule)
    document: dict[str, Any] = {
        "format": SCHEDULE,
        "version": 1,
        "passing": problem.placement.passing.value,
        "ranks": problem.ranks,
        "stages": problem.stages,
        "microbatches": problem.microbatches,
        "profile": dump_profile(problem.profile),
        "memory_limit": finite(problem.memory_limit),
        "order": [
            [
                {
                    "op": op.kind.name,
                    "stage": op.stage,
                    "microbatch": op.microbatch,
                    "start": s,
                    "end": e,
                }
                for op, s, e in zip(
                    schedule.ops(rank),
                    timing.start[rank].tolist(),
                    timing.end[rank].tolist(),
                    strict=True,
                )
            ]
            for rank in range(problem.ranks)
        ],
        "report": _dump_report(schedule, timing),
    }
    if problem.placement.passing is not Passing.ACTIVATIONS:
        document["transfers"] = [
            {
                "tensor": t.kind.value,
                "stage": t.stage,
                "from": t.source,
                "to": t.target,
                "start": start,
                "end": end,
                "copy": t.copy,
                "after": t.after,
                "before": t.before,
                "room": t.room,
                **({} if t.blocks is None else {"blocks": t.blocks}),
            }
            for t, (start, end) in zip(schedule.transfers, timing.transfers.tolist(), strict=True)
        ]
    if any(schedule.pairs):
        document["pairs"] = list(map(list, schedule.pairs))
    if any(timing.averages):
        document["averages"] = [[one._asdict() for one in row] for row in timing.averages]
    if schedule.updates is not Updates.ITERATION:
        document["updates"] = schedule.updates.value
    return document


def _dump_report(schedule: Schedule, timing: Timing) -> dict[str, Any]:
    objective = schedule.problem.objective
    report = schedule.report or Report(objective, "")
    cost = timing.cost(objective)
    bound = report.lower_bound
    return {
        "objective": objective.value,
        "period": timing.period,
        "makespan": timing.makespan,
        "bubble_rate": timing.bubble_rate(objective),
        "lower_bound": bound,
        "gap": None if bound is None else max(0.0, (cost - bound) / cost) if cost > 0 else 0.0,
        "status": report.status.value,
        "peak_memory": list(timing.peak_memory),
        "family": report.family,
        "solver": report.solver,
        "solve_seconds": report.solve_seconds,
        "seed": report.seed,
        "bound_name": report.bound_name,
        **({"step": timing.iteration_time(objective)} if any(timing.averages) else {}),
    }
