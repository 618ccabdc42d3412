"""The timeline as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing
open."""

from __future__ import annotations

from typing import Any

from pipeloom.ir.model.schedule import Schedule

from .bars import Bar, averages, bars, copies, memory_steps, timed, times
from .colours import NAMES
from .summaries import heading


def trace_events(schedule: Schedule) -> dict[str, Any]:
    """A thread a rank, an event an op (microseconds), a counter a rank for the memory held."""
    schedule = timed(schedule)
    events: list[dict[str, Any]] = [_name("process_name", 0, heading(schedule))]
    for rank in range(schedule.problem.ranks):
        events.append(_name("thread_name", rank, f"rank {rank}"))
        events += _ops(schedule, rank)
        events += _counters(schedule, rank)
        beside = _copies(schedule, rank)
        if beside:
            events.append(_name("thread_name", _lane(schedule, rank), f"rank {rank}, host"))
            events += beside
        if averages(schedule, rank):
            thread = 2 * schedule.problem.ranks + rank
            events.append(_name("thread_name", thread, f"rank {rank}, averaging"))
            events += _averages(schedule, rank, thread)
    events += _transfers(schedule)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 0, "tid": thread, "args": {"name": name}}


def _ops(schedule: Schedule, rank: int) -> list[dict[str, Any]]:
    return [
        _common(bar, rank) | {"ph": "X", "ts": bar.start * 1e3, "dur": (bar.end - bar.start) * 1e3}
        for bar in bars(schedule, rank)
    ]


def _common(bar: Bar, thread: int) -> dict[str, Any]:
    op = bar.op
    about = {"op": op.kind.name, "stage": op.stage, "microbatch": op.microbatch}
    return {"name": str(op), "cat": NAMES[op.kind], "pid": 0, "tid": thread, "args": about}


def _lane(schedule: Schedule, rank: int) -> int:
    """The thread for what moves to and from the host."""
    return schedule.problem.ranks + rank


def _copies(schedule: Schedule, rank: int) -> list[dict[str, Any]]:
    """Copies to and from the host as asynchronous events, since the two directions may overlap."""
    events: list[dict[str, Any]] = []
    for bar in copies(schedule, rank):
        common = _common(bar, _lane(schedule, rank)) | {"id": f"host {bar.op}"}
        events += [
            common | {"ph": "b", "ts": bar.start * 1e3},
            common | {"ph": "e", "ts": bar.end * 1e3},
        ]
    return events


def _averages(schedule: Schedule, rank: int, thread: int) -> list[dict[str, Any]]:
    return [
        {
            "name": f"average {one.stage}",
            "cat": "average",
            "pid": 0,
            "tid": thread,
            "args": {"stage": one.stage},
            "ph": "X",
            "ts": one.start * 1e3,
            "dur": (one.end - one.start) * 1e3,
        }
        for one in averages(schedule, rank)
    ]


def _counters(schedule: Schedule, rank: int) -> list[dict[str, Any]]:
    name = f"memory of rank {rank}"
    return [
        {"ph": "C", "name": name, "pid": 0, "ts": at * 1e3, "args": {"held": held}}
        for at, held in memory_steps(schedule, rank)
    ]


def _transfers(schedule: Schedule) -> list[dict[str, Any]]:
    """Weight transfers as asynchronous events, since those of one rank may overlap."""
    events: list[dict[str, Any]] = []
    for i, (transfer, (start, end)) in enumerate(
        zip(schedule.transfers, times(schedule).transfers.tolist(), strict=False)
    ):
        common = {
            "name": f"{transfer.kind.value} {transfer.stage}: {transfer.source} to "
            f"{transfer.target}",
            "cat": "transfer",
            "id": i,
            "pid": 0,
            "tid": transfer.target,
        }
        events += [common | {"ph": "b", "ts": start * 1e3}, common | {"ph": "e", "ts": end * 1e3}]
    return events
