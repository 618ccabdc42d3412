"""Profiles, schedules and programs as files; the formats are in ``docs/formats.md``."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .errors import InputError
from .ops import Op, OpKind, pack
from .problem import Objective, Passing, Placement, Problem
from .profile import Link, Links, Profile, StageProfile
from .program import Buffer, Program, TensorKind, parse_instruction
from .reading import Reader, is_amount, is_count, is_matrix, read_json, show
from .schedule import Report, Schedule, Status, Timing, Transfer, TravelKind
from .simulate import simulate

PROFILE, SCHEDULE, PROGRAM = "pipeloom.profile", "pipeloom.schedule", "pipeloom.program"
_TIMES = ("t_f", "t_b", "t_w")
_SIZES = ("activation_bytes", "weight_bytes", "grad_bytes", "optimizer_bytes")


def write_json(document: dict[str, Any], path: str) -> None:
    """Writes to ``path`` at once or not at all, or to standard output for ``-``."""
    text = json.dumps(document, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    write_text(text, path)


def write_text(text: str, path: str) -> None:
    """Writes to ``path`` at once or not at all. Raises InputError where it cannot be written."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a pipe or a device: nothing to replace
            target.write_text(text, encoding="utf-8")
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load_profile(path: str) -> Profile:
    """Reads a profile. Raises InputError with every error of the file."""
    return parse_profile(read_json(path), path)


def parse_profile(data: dict[str, Any], where: str) -> Profile:
    errors: list[str] = []
    profile = _profile(Reader(data, where, errors))
    if errors:
        raise InputError(*errors)
    return profile


def _profile(reader: Reader) -> Profile:
    reader.format(PROFILE)
    ranks = reader.count("ranks", least=1)
    return Profile(
        stages=_stages(reader),
        ranks=ranks,
        t_comm=_t_comm(reader, ranks),
        links=_links(reader, ranks) if reader.has("links") else None,
        memory_limit=_per_rank(reader, "memory_limit", ranks),
        device_memory=_per_rank(reader, "device_memory", ranks),
        name=reader.text("name") if reader.has("name") else "",
    )


def _stages(reader: Reader) -> tuple[StageProfile, ...]:
    entries = reader.items("stages")
    stages = tuple(
        _stage(Reader(entry, f"{reader.where}: stages[{s}]", reader.errors))
        for s, entry in enumerate(entries)
    )
    if not stages and isinstance(reader.data.get("stages"), list):
        reader.wrong("stages", [], "at least one stage")
    if not reader.has("num_stages"):
        return stages
    number = reader.count("num_stages", least=1)
    if len(stages) not in (1, number):
        reader.wrong(
            "num_stages",
            number,
            f"{len(stages)}, the number of entries in stages, or one shared entry",
        )
    return stages * number if len(stages) == 1 else stages


def _stage(reader: Reader) -> StageProfile:
    t_f, t_b, t_w = map(reader.number, _TIMES)
    m_b, m_w = reader.number("m_b", 1.0), reader.number("m_w")
    if m_w > m_b:
        reader.wrong("m_w", m_w, f"at most m_b ({m_b:g})")
    activation, weight, grad, optimizer = map(reader.optional_number, _SIZES)
    return StageProfile(t_f, t_b, t_w, m_b, m_w, activation, weight, grad, optimizer)


def _t_comm(reader: Reader, ranks: int) -> float | tuple[tuple[float, ...], ...] | None:
    if not reader.has("t_comm"):
        return None
    value = reader.data["t_comm"]
    if is_amount(value):
        return float(value)
    if is_matrix(value, ranks):
        return tuple(tuple(map(float, row)) for row in value)
    reader.wrong("t_comm", value, f"a finite number >= 0 or a {ranks} x {ranks} matrix of them")
    return None


def _links(reader: Reader, ranks: int) -> Links:
    links = reader.child("links")
    pairs = []
    for i, entry in enumerate(links.items("pairs") if links.has("pairs") else []):
        where = f"{links.where}: pairs[{i}]"
        if not (isinstance(entry, list) and len(entry) == 3 and _are_ranks(entry[:2], ranks)):
            links.fail(
                f"{where}: expected [rank, rank, link] with ranks 0..{ranks - 1}, got {show(entry)}"
            )
            continue
        pairs.append((entry[0], entry[1], _link(Reader(entry[2], where, links.errors))))
    return Links(_link(links), tuple(pairs))


def _are_ranks(values: list[Any], ranks: int) -> bool:
    return all(is_count(value) and 0 <= value < ranks for value in values)


def _link(reader: Reader) -> Link:
    latency, bandwidth = reader.number("latency"), reader.number("gigabytes_per_second", 1.0)
    if bandwidth == 0:
        reader.wrong("gigabytes_per_second", bandwidth, "more than 0")
        bandwidth = 1.0
    return Link(latency, bandwidth)


def _per_rank(reader: Reader, key: str, ranks: int) -> tuple[float, ...] | None:
    if not reader.has(key):
        return None
    value = reader.data[key]
    if is_amount(value):
        return (float(value),) * ranks
    if (
        isinstance(value, list)
        and len(value) == ranks
        and all(v is None or is_amount(v) for v in value)
    ):
        return tuple(math.inf if v is None else float(v) for v in value)
    reader.wrong(key, value, f"a finite number >= 0, or a list of {ranks} of them")
    return None


def dump_profile(profile: Profile) -> dict[str, Any]:
    """The profile as a JSON object; parsing it gives an equal profile."""
    document: dict[str, Any] = {"format": PROFILE, "version": 1, "name": profile.name}
    document["stages"] = [_known(asdict(stage)) for stage in profile.stages]
    document["ranks"] = profile.ranks
    if profile.t_comm is not None:
        document["t_comm"] = profile.t_comm
    if profile.links is not None:
        document["links"] = asdict(profile.links.default) | {
            "pairs": [[a, b, asdict(link)] for a, b, link in profile.links.pairs]
        }
    for key in ("memory_limit", "device_memory"):
        limit = getattr(profile, key)
        if limit is not None:
            document[key] = finite(limit)
    return document


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def finite(limits: tuple[float, ...]) -> list[float | None]:
    """Memory limits as JSON has them: null where there is none."""
    return [limit if math.isfinite(limit) else None for limit in limits]


def load_schedule(path: str) -> Schedule:
    """Reads a schedule, its recorded times included. Raises InputError with every error found."""
    return parse_schedule(read_json(path), path)


def parse_schedule(data: dict[str, Any], where: str) -> Schedule:
    errors: list[str] = []
    reader = Reader(data, where, errors)
    reader.format(SCHEDULE)
    profile = _profile(reader.child("profile"))
    microbatches = reader.count("microbatches", least=1)
    limit = _per_rank(reader, "memory_limit", profile.ranks)
    for key, value in (("ranks", profile.ranks), ("stages", profile.num_stages)):
        if reader.count(key) != value:
            reader.wrong(key, reader.data.get(key), f"{value}, as in its profile")
    rows = _rows(reader, profile.ranks)
    reader.finish()
    objective, report = _report(reader)
    placement = _placement(reader, rows, profile, microbatches)
    problem = Problem(
        profile, microbatches, placement, limit or (math.inf,) * profile.ranks, objective
    )
    transfers, travel_times = _transfers(reader)
    reader.finish()
    timing = Timing(
        tuple(np.array([start for _, start, _ in row]) for row in rows),
        tuple(np.array([end for _, _, end in row]) for row in rows),
        tuple(float(value) for value in (data.get("report") or {}).get("peak_memory") or ()),
        np.array(travel_times).reshape(-1, 2),
    )
    order = tuple(pack(op for op, _, _ in row) for row in rows)
    return Schedule(problem, order, transfers, report, timing)


_Row = list[tuple[Op, float, float]]


def _rows(reader: Reader, ranks: int) -> list[_Row]:
    lists = reader.items("order")
    if len(lists) != ranks:
        reader.wrong("order", f"{len(lists)} lists", f"{ranks} lists, one a rank")
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
    kind = reader.get("op", "F, B, W or BW", lambda v: v in OpKind.__members__, "F")
    op = Op(OpKind[kind], reader.count("stage"), reader.count("microbatch"))
    return op, reader.number("start"), reader.number("end")


E = TypeVar("E", bound=Enum)


def _choice(reader: Reader, key: str, choices: type[E]) -> E:
    names = [choice.value for choice in choices]
    return choices(reader.get(key, " or ".join(names), lambda value: value in names, names[0]))


def _report(reader: Reader) -> tuple[Objective, Report | None]:
    if not reader.has("report"):
        return Objective.PERIOD, None
    report = reader.child("report")
    objective = (
        _choice(report, "objective", Objective) if report.has("objective") else Objective.PERIOD
    )
    status = report.data.get("status")
    return objective, Report(
        objective=objective,
        family=str(report.data.get("family", "")),
        status=Status(status) if status in [s.value for s in Status] else Status.FEASIBLE,
        lower_bound=report.data.get("lower_bound"),
        bound_name=report.data.get("bound_name"),
        solver=report.data.get("solver"),
        solve_seconds=report.data.get("solve_seconds"),
        seed=report.data.get("seed"),
    )


def _placement(reader: Reader, rows: list[_Row], profile: Profile, microbatches: int) -> Placement:
    """The placement that the order shows; what the order breaks is left to the verifier."""
    passing = _choice(reader, "passing", Passing)
    stages = profile.num_stages
    owners = np.zeros((stages, microbatches), dtype=np.int64)
    for rank, row in enumerate(rows):
        for op, _, _ in row:
            if op.stage >= stages or op.microbatch >= microbatches:
                reader.fail(
                    f"{reader.where}: order[{rank}]: {op} is outside {stages} stages and {microbatches} microbatches"
                )
            else:
                owners[op.stage, op.microbatch] = rank
    table = {
        Passing.ACTIVATIONS: owners[:, 0],
        Passing.WEIGHTS: owners[0],
        Passing.MIXED: owners.ravel(),
    }
    return Placement(passing, tuple(table[passing].tolist()))


def _transfers(reader: Reader) -> tuple[tuple[Transfer, ...], list[tuple[float, float]]]:
    transfers, times = [], []
    for i, entry in enumerate(reader.items("transfers") if reader.has("transfers") else []):
        item = Reader(entry, f"{reader.where}: transfers[{i}]", reader.errors)
        kind = _choice(item, "tensor", TravelKind)
        numbers = {key: item.count(key) for key in ("stage", "copy", "after", "before")}
        transfers.append(
            Transfer(kind, source=item.count("from"), target=item.count("to"), **numbers)
        )
        times.append((item.number("start"), item.number("end")))
    return tuple(transfers), times


def dump_schedule(schedule: Schedule) -> dict[str, Any]:
    """The schedule as a JSON object, simulated first where it has no timing yet."""
    problem, timing = schedule.problem, schedule.timing or simulate(schedule)
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
    if schedule.transfers:
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
            }
            for t, (start, end) in zip(schedule.transfers, timing.transfers.tolist(), strict=True)
        ]
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
    }


def load_program(path: str) -> Program:
    """Reads a program. Raises InputError with every error of the file."""
    return parse_program(read_json(path), path)


def parse_program(data: dict[str, Any], where: str) -> Program:
    errors: list[str] = []
    reader = Reader(data, where, errors)
    reader.format(PROGRAM)
    reader.finish()
    schedule = parse_schedule(reader.child("schedule").data, f"{where}: schedule")
    ranks = schedule.problem.ranks
    instructions = [
        _parsed(reader, f"instructions[{r}]", lines, parse_instruction)
        for r, lines in enumerate(_lists(reader, "instructions", ranks))
    ]
    buffers = [
        _parsed(reader, f"buffers[{r}]", names, _buffer)
        for r, names in enumerate(_lists(reader, "buffers", ranks))
    ]
    reader.finish()
    return Program(schedule, tuple(instructions), tuple(buffers))


def _lists(reader: Reader, key: str, ranks: int) -> list[list[Any]]:
    lists = reader.items(key)
    if len(lists) != ranks or not all(isinstance(entry, list) for entry in lists):
        reader.wrong(key, lists, f"{ranks} lists, one a rank")
        return []
    return lists


def _parsed(reader: Reader, key: str, texts: list[Any], parse: Any) -> tuple[Any, ...]:
    parsed = []
    for i, text in enumerate(texts):
        try:
            parsed.append(parse(str(text)))
        except ValueError as error:
            reader.fail(f"{reader.where}: {key}[{i}]: {error}")
    return tuple(parsed)


def _buffer(text: str) -> Buffer:
    kind = text.rstrip("0123456789")
    if kind not in {k.value for k in TensorKind} or kind == text:
        raise ValueError(f"not a buffer: {text!r} (expected e.g. x1, dy1, w1 or dw1)")
    return Buffer(TensorKind(kind), int(text[len(kind) :]))


def dump_program(program: Program) -> dict[str, Any]:
    """The program as a JSON object."""
    return {
        "format": PROGRAM,
        "version": 1,
        "schedule": dump_schedule(program.schedule),
        "instructions": [list(map(str, row)) for row in program.instructions],
        "buffers": [list(map(str, row)) for row in program.buffers],
    }
