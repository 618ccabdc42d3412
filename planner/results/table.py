"""Tables of results: their columns, and the base class of all tables of schedules for one
profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import memory_size
from pipeloom.report.summaries import asked_by_profile, percent, transfer_note
from pipeloom.report.text_table import Cell, table

from .result import Result


class Column(NamedTuple):
    heading: str
    cell: Callable[[Result], Cell]


def _status(row: Result) -> str:
    gap = f", gap {percent(row.gap)}" if row.gap and row.status != "optimal" else ""
    note = transfer_note(row.schedule)
    return f"{row.status}{gap}" + (f"; {note}" if note else "")


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _size(value: float | None) -> str:
    return "-" if value is None else memory_size(value)


SCHEME = Column("scheme", lambda row: row.scheme)
SCHEDULE = Column("schedule", lambda row: row.name)
PLACEMENT = Column("placement", lambda row: row.schedule.problem.placement.name)
PERIOD = Column("period", lambda row: row.timing.period)
MAKESPAN = Column("makespan", lambda row: row.timing.makespan)
BUBBLE = Column("bubble", lambda row: percent(row.bubble_rate))
ITERATION = Column("iteration", lambda row: row.cost)
STEP = Column("step", lambda row: row.step_time)
STEP_BUBBLE = Column("bubble", lambda row: percent(row.step_bubble_rate))
PEAK_MEMORY = Column("peak memory", lambda row: memory_size(row.peak_memory))
STATUS = Column("status", _status)
LINK_BYTES = Column("link bytes", lambda row: _size(row.link_bytes))
WIRE = Column("busiest wire", lambda row: row.wire.name if row.wire else "-")
WIRE_BYTES = Column("bytes", lambda row: _size(row.wire.bytes if row.wire else None))
WIRE_USE = Column("busy", lambda row: _share(row.wire_use))
DEVICE_MEMORY = Column("device memory", lambda row: memory_size(row.device_memory))
BALANCE = Column(
    "balance", lambda row: "-" if row.balance is None else f"{row.balance * 100:.0f} %"
)


def results_table(rows: Sequence[Result], columns: Sequence[Column]) -> str:
    """Return a table with one line per row. For a row without a schedule, the line consists of its
    name and, in the last column, the reason."""

    def cells(row: Result) -> list[Cell]:
        if row.planned is not None:
            return [column.cell(row) for column in columns]
        return [columns[0].cell(row), *["-"] * (len(columns) - 2), row.refusal]

    return table([column.heading for column in columns], map(cells, rows))


def grouped(notes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the distinct notes, each with the names of all rows to which it applies. ``notes``:
    pairs of a note and the name of a row."""
    found: dict[str, list[str]] = {}
    for note, name in notes:
        found.setdefault(note, []).append(name)
    return found


@dataclass(frozen=True)
class ResultTable:
    """A table of schedules for the same profile. ``rows``: the results, some of which may lack a
    schedule."""

    profile: Profile
    microbatches: int
    objective: Objective
    rows: tuple[Result, ...]

    @property
    def built(self) -> list[Result]:
        """The rows that have a schedule."""
        return [row for row in self.rows if row.planned is not None]

    @property
    def notes(self) -> list[str]:
        """A list with one line on the objective if the profile determined it; otherwise an empty
        list."""
        asked = asked_by_profile(self.profile, self.objective)
        return [] if asked is None else [f"objective: {asked}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the part of the ``--json`` output that all tables have in common: profile, number
        of microbatches and objective."""
        return {
            "profile": self.profile.name,
            "microbatches": self.microbatches,
            "objective": self.objective.value,
        }
