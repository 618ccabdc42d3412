"""The timeline as Chrome trace events, for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.schedule import Schedule

from .bars import OpBar, averages, bars, copies, memory_steps, timed
from .colours import NAMES
from .summaries import caption


def trace_events(schedules: Sequence[tuple[str | None, Schedule]]) -> dict[str, Any]:
    """Chrome trace events with one process per schedule, such as the planned and the measured one.

    A process has one thread per rank, one event per op (times in microseconds), one arrow per
    message between ranks, and a counter of each rank's memory.
    """
    events = [
        event | {"pid": pid} | ({"id": f"{pid}.{event['id']}"} if "id" in event else {})
        for pid, (name, schedule) in enumerate(schedules)
        for event in _process(timed(schedule), caption(name, schedule))
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _process(schedule: Schedule, title: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [_name("process_name", 0, title)]
    for rank in range(schedule.problem.ranks):
        events.append(_name("thread_name", rank, f"rank {rank}"))
        events += _ops(schedule, rank)
        events += _counters(schedule, rank)
        beside = _copies(schedule, rank)
        if beside:
            events.append(_name("thread_name", _host_thread(schedule, rank), f"rank {rank}, host"))
            events += beside
        if averages(schedule, rank):
            thread = 2 * schedule.problem.ranks + rank
            events.append(_name("thread_name", thread, f"rank {rank}, averaging"))
            events += _averages(schedule, rank, thread)
    return events + _transfers(schedule) + list(_messages(schedule))


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "tid": thread, "args": {"name": name}}


def _ops(schedule: Schedule, rank: int) -> list[dict[str, Any]]:
    return [
        _common(bar, rank) | {"ph": "X", "ts": bar.start * 1e3, "dur": (bar.end - bar.start) * 1e3}
        for bar in bars(schedule, rank)
    ]


def _common(bar: OpBar, thread: int) -> dict[str, Any]:
    op = bar.op
    about = {"op": op.kind.name, "stage": op.stage, "microbatch": op.microbatch}
    return {"name": str(op), "cat": NAMES[op.kind], "tid": thread, "args": about}


def _host_thread(schedule: Schedule, rank: int) -> int:
    return schedule.problem.ranks + rank


def _copies(schedule: Schedule, rank: int) -> list[dict[str, Any]]:
    """Copies to and from the host as asynchronous events, as the two directions may overlap."""
    events: list[dict[str, Any]] = []
    for bar in copies(schedule, rank):
        common = _common(bar, _host_thread(schedule, rank)) | {"id": f"host {bar.op}"}
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
        {"ph": "C", "name": name, "ts": at * 1e3, "args": {"held": held}}
        for at, held in memory_steps(schedule, rank)
    ]


def _messages(schedule: Schedule) -> Iterator[dict[str, Any]]:
    """An arrow from each op that computes an activation or its gradient to the op that needs it, if
    that is on another rank."""
    each = {bar.op: bar for rank in range(schedule.problem.ranks) for bar in bars(schedule, rank)}
    for op, bar in each.items():
        needed = next((each[other] for other in _needing(op) if other in each), None)
        if needed is None or needed.rank == bar.rank:
            continue
        common = {"name": "message", "cat": "message", "id": f"message {op}"}
        leaves = bar.end * 1e3 - min(1.0, (bar.end - bar.start) * 500)  # inside the op's event
        yield common | {"ph": "s", "ts": leaves, "tid": bar.rank}
        yield common | {"ph": "f", "bp": "e", "ts": needed.start * 1e3, "tid": needed.rank}


def _needing(op: Op) -> list[Op]:
    """The ops that may need the output of ``op``."""
    if op.kind is OpKind.F:
        return [Op(OpKind.F, op.stage + 1, op.microbatch)]
    if op.kind in (OpKind.B, OpKind.BW):
        return [Op(kind, op.stage - 1, op.microbatch) for kind in (OpKind.B, OpKind.BW)]
    return []


def _transfers(schedule: Schedule) -> list[dict[str, Any]]:
    """Weight transfers as asynchronous events, as those of one rank may overlap."""
    events: list[dict[str, Any]] = []
    for i, (transfer, (start, end)) in enumerate(
        zip(schedule.transfers, schedule.known_timing.transfers.tolist(), strict=False)
    ):
        common = {
            "name": f"{transfer.kind.value} {transfer.stage}: {transfer.source} to "
            f"{transfer.target}",
            "cat": "transfer",
            "id": i,
            "tid": transfer.target,
        }
        events += [common | {"ph": "b", "ts": start * 1e3}, common | {"ph": "e", "ts": end * 1e3}]
    return events
