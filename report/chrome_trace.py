"""The timeline of schedules as Chrome trace events, for Perfetto (ui.perfetto.dev) or
chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.schedule import Schedule

from .bars import Bar, RankBars, rows, timed
from .colours import NAMES
from .summaries import caption

Events: TypeAlias = Iterator[dict[str, Any]]


def trace_events(schedules: Sequence[tuple[str | None, Schedule]]) -> dict[str, Any]:
    """A Chrome trace as a dictionary for JSON, with one process per schedule.

    ``schedules``: pairs of the user's name for a schedule, or None, and the schedule; for example a
    planned and a measured one. A process has one thread per rank, one event per op (times in
    microseconds), one arrow per message between ranks, and a counter of each rank's memory. Copies
    to the host and averages, if any, have threads of their own.
    """
    events = [
        event | {"pid": pid} | ({"id": f"{pid}.{event['id']}"} if "id" in event else {})
        for pid, (name, schedule) in enumerate(schedules)
        for event in _process(timed(schedule), caption(name, schedule))
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _process(schedule: Schedule, title: str) -> Events:
    yield _name("process_name", 0, title)
    found = rows(schedule)
    for row in found:
        host, averaging = (len(found) * n + row.rank for n in (1, 2))
        yield from _thread(row.rank, f"rank {row.rank}", _complete(row.ops, row.rank))
        yield from _counters(row)
        if row.copies:
            yield from _thread(host, f"rank {row.rank}, host", _overlapping(row.copies, host))
        if row.averages:
            averages = _complete(row.averages, averaging)
            yield from _thread(averaging, f"rank {row.rank}, averaging", averages)
        yield from _overlapping(row.arrivals, row.rank)
    yield from _messages(chain.from_iterable(row.ops for row in found))


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "tid": thread, "args": {"name": name}}


def _thread(thread: int, name: str, events: Events) -> Events:
    yield _name("thread_name", thread, name)
    yield from events


def _about(bar: Bar, thread: int) -> dict[str, Any]:
    common: dict[str, Any] = {"name": bar.name, "tid": thread}
    if (op := bar.op) is None:
        return common | {"cat": "transfer" if bar.kind else "average"}
    args = {"op": op.kind.name, "stage": op.stage, "microbatch": op.microbatch}
    return common | {"cat": NAMES[op.kind], "args": args}


def _complete(bars: Iterable[Bar], thread: int) -> Events:
    for bar in bars:
        took = {"ts": bar.start * 1e3, "dur": (bar.end - bar.start) * 1e3}
        yield _about(bar, thread) | {"ph": "X"} | took


def _overlapping(bars: Iterable[Bar], thread: int) -> Events:
    """Yield two asynchronous events per bar, as copies or transfers of a rank may overlap."""
    for number, bar in enumerate(bars):
        common = _about(bar, thread) | {"id": f"{thread}.{number}"}
        yield common | {"ph": "b", "ts": bar.start * 1e3}
        yield common | {"ph": "e", "ts": bar.end * 1e3}


def _counters(row: RankBars) -> Events:
    for at, held in row.memory:
        name = f"memory of rank {row.rank}"
        yield {"ph": "C", "name": name, "ts": at * 1e3, "args": {"held": held}}


def _messages(bars: Iterable[Bar]) -> Events:
    """Yield an arrow for each activation, or its gradient, that is sent to another rank.

    It leads from the op that computes the tensor to the op that needs it.
    """
    each = {bar.op: bar for bar in bars if bar.op is not None}
    for op, bar in each.items():
        needed = next((each[other] for other in _needing(op) if other in each), None)
        if needed is None or needed.rank == bar.rank:
            continue
        common = {"name": "message", "cat": "message", "id": f"message {op}"}
        leaves = bar.end * 1e3 - min(1.0, (bar.end - bar.start) * 500)  # inside the op's event
        yield common | {"ph": "s", "ts": leaves, "tid": bar.rank}
        yield common | {"ph": "f", "bp": "e", "ts": needed.start * 1e3, "tid": needed.rank}


def _needing(op: Op) -> list[Op]:
    """The ops that could need the output of ``op``; some of them may not be in the schedule."""
    if op.kind is OpKind.F:
        return [Op(OpKind.F, op.stage + 1, op.microbatch)]
    if op.kind in (OpKind.B, OpKind.BW):
        return [Op(kind, op.stage - 1, op.microbatch) for kind in (OpKind.B, OpKind.BW)]
    return []
