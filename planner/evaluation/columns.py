"""The columns of tables of evaluations; each table selects some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pipeloom.ir.units import memory_size
from pipeloom.report.summaries import percent, transfer_note
from pipeloom.report.text_table import Cell

from .evaluation import Evaluation


class Column(NamedTuple):
    heading: str
    cell: Callable[[Evaluation], Cell]


def _status(row: Evaluation) -> str:
    gap = f", gap {percent(row.gap)}" if row.gap and row.status != "optimal" else ""
    note = transfer_note(row.schedule)
    return f"{row.status}{gap}" + (f"; {note}" if note else "")


SCHEME = Column("scheme", lambda row: row.scheme)
SCHEDULE = Column("schedule", lambda row: row.name)
PLACEMENT = Column("placement", lambda row: row.schedule.problem.placement.name)
PERIOD = Column("period", lambda row: row.timing.period)
MAKESPAN = Column("makespan", lambda row: row.timing.makespan)
BUBBLE = Column("bubble", lambda row: percent(row.bubble_rate))
ITERATION = Column("iteration", lambda row: row.iteration_time)
STEP = Column("step", lambda row: row.step_time)
STEP_BUBBLE = Column("bubble", lambda row: percent(row.step_bubble_rate))
PEAK_MEMORY = Column("peak memory", lambda row: memory_size(row.peak_memory))
STATUS = Column("status", _status)
LINK_BYTES = Column(
    "link bytes", lambda row: "-" if row.link_bytes is None else memory_size(row.link_bytes)
)
WIRE = Column("busiest wire", lambda row: row.wire.name if row.wire else "-")
WIRE_BYTES = Column("bytes", lambda row: memory_size(row.wire.bytes) if row.wire else "-")
WIRE_USE = Column("busy", lambda row: "-" if row.wire_use is None else percent(row.wire_use))
DEVICE_MEMORY = Column("device memory", lambda row: memory_size(row.device_memory))
BALANCE = Column(
    "balance", lambda row: "-" if row.balance is None else f"{row.balance * 100:.0f} %"
)
