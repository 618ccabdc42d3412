"""The timeline in a terminal: one row per rank, and as many columns as fit.

Each column shows the op that runs at its middle. An op is shown as its kind and microbatch,
followed by a fill character of its kind, so that the picture can be read without colours. A pair of
ops that run at once is one cell with both microbatches. Copies to and from the host have their own
rows::

    rank 0 │F0─F1─F2─····B0══W0┄P3/1≡≡≡≡
        out│   O0→→→
        mem│▁▁▃▃▅▅▅▅▅▅▃▃▂▂▃▃▃▃▃▃▃
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.schedule import Averaged, Schedule
from pipeloom.ir.units import duration, memory_size

from .bars import OpBar, averages, bars, copies, counted, kinds, last, memory_steps, timed
from .colours import AT_ONCE, AVERAGE, AVERAGED, NAMES, Colour, colour, is_light, of_pair
from .summaries import caption, repeats, summary

_FILL = {
    OpKind.F: "─", OpKind.B: "═", OpKind.W: "┄", OpKind.BW: "━",
    OpKind.R: "╌", OpKind.O: "→", OpKind.L: "←",
}  # fmt: skip
# the letter of an op that has only one column
_LETTER = {kind: kind.name for kind in OpKind} | {OpKind.BW: "D"}
_IDLE, _LEVELS = "·", " ▁▂▃▄▅▆▇█"
_COPIES = {OpKind.O: "out", OpKind.L: "back"}


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """A mark from ``start`` to ``end``: the first of ``names`` that fits, followed by ``fill``."""

    start: float
    end: float
    names: tuple[str, ...]
    fill: str
    rgb: Colour

    def text(self, length: int) -> str:
        """``F12──``, or ``F──`` if the number does not fit, or ``F``."""
        name = next((name for name in self.names if len(name) <= length), self.names[-1])
        return name + self.fill * (length - len(name))


def timeline_text(
    schedule: Schedule,
    *,
    name: str | None = None,
    columns: int = 100,
    colours: bool = False,
    memory: float | None = None,
    end: float | None = None,
) -> str:
    """The schedule as text with ``columns`` characters per line, and ANSI colours on request.

    ``name``: the user's name for it. ``memory``: if given, draw each rank's memory over time, from
    0 to this. ``end``: the end of the time axis, by default the schedule's own.
    """
    schedule = timed(schedule)
    lines = [caption(name, schedule), bare_timeline(schedule, columns, colours, memory, end)]
    lines += filter(None, [summary(schedule), repeats(schedule)])
    return "\n".join(lines) + "\n"


def bare_timeline(
    schedule: Schedule,
    columns: int,
    colours: bool = False,
    memory: float | None = None,
    end: float | None = None,
) -> str:
    """Only the rows, the axis and the legend, without a title and figures."""
    schedule = timed(schedule)
    end = last(schedule) if end is None else end
    head = max(len(f"rank {rank}") for rank in range(schedule.problem.ranks)) + 2
    width = max(10, columns - head - 1)
    lines = []
    below = _rows_of_copies(schedule)
    for rank in range(schedule.problem.ranks):
        idle = counted(schedule, rank)
        rows = [(f"rank {rank}", _cells(_marks(bars(schedule, rank)), end, width, idle))]
        for name, kinds_of_it in below.items():
            own = [bar for bar in copies(schedule, rank) if bar.op.kind in kinds_of_it]
            rows.append((name, _cells(_visible(own, end / width), end, width)))
        if averaged := averages(schedule, rank):
            rows.append(("avg", _cells([*map(_average, averaged)], end, width)))
        if memory is not None:
            rows.append(("mem", [(_levels(schedule, rank, end, width, memory), None)]))
        for name, cells in rows:
            row = "".join(_painted(text, mark) if colours else text for text, mark in cells)
            label = name.ljust(head - 1) if name.startswith("rank") else name.rjust(head - 1)
            lines.append(f"{label}│{row}│")
    legend = _legend(schedule, colours, memory)
    return "\n".join([*lines, " " * head + _axis(end, width), legend])


def _levels(schedule: Schedule, rank: int, end: float, width: int, most: float) -> str:
    """For each column, a block whose height is the largest memory of ``rank`` in its time."""
    held, scale = np.zeros(width), width / end if end > 0 else 0.0
    steps = [*memory_steps(schedule, rank), (end, 0.0)]
    for (start, size), (stop, _) in pairwise(steps):
        columns = slice(int(start * scale), math.ceil(stop * scale))
        held[columns] = np.maximum(held[columns], size)
    levels = np.ceil(held / most * (len(_LEVELS) - 1) - 1e-9) if most > 0 else held
    return "".join(_LEVELS[min(level, len(_LEVELS) - 1)] for level in levels.astype(int).tolist())


def _rows_of_copies(schedule: Schedule) -> dict[str, tuple[OpKind, ...]]:
    """The rows of copies below each rank's row: one, or one per direction if some overlap."""
    found = [list(copies(schedule, rank)) for rank in range(schedule.problem.ranks)]
    if not any(found):
        return {}
    rows = [sorted(row, key=lambda bar: bar.start) for row in found]
    if any(after.start < before.end for row in rows for before, after in pairwise(row)):
        return {name: (kind,) for kind, name in _COPIES.items()}
    return {"host": tuple(_COPIES)}


def _marks(shown: Iterable[OpBar]) -> list[_Mark]:
    """One mark per bar; a pair that runs at once is one mark."""
    marks: list[_Mark] = []
    first: OpBar | None = None
    for bar in shown:
        if bar.half == 0:
            first = bar
        elif bar.half is None or first is None:
            marks.append(_mark(bar))
        else:
            number = first.op.microbatch
            names = (f"P{number}/{bar.op.microbatch}", f"P{number}", "P")
            marks.append(_Mark(first.start, bar.end, names, "≡", of_pair(bar.shade)))
            first = None
    return marks


def _average(one: Averaged) -> _Mark:
    return _Mark(one.start, one.end, (f"A{one.stage}", "A"), "~", AVERAGE)


def _mark(bar: OpBar) -> _Mark:
    kind, fill = bar.op.kind, _FILL[bar.op.kind]
    # BW in two columns would read as a B and a W
    short = f"BW{fill}" if kind is OpKind.BW else kind.name
    names = (f"{kind.name}{bar.op.microbatch}", short, _LETTER[kind])
    return _Mark(bar.start, bar.end, names, fill, colour(kind, bar.shade))


def _visible(shown: Iterable[OpBar], least: float) -> list[_Mark]:
    """The marks of copies, each at least ``least`` ms wide, so that short ones are visible."""
    marks = map(_mark, sorted(shown, key=lambda bar: bar.start))
    return [replace(mark, end=max(mark.end, mark.start + least)) for mark in marks]


def _cells(
    shown: list[_Mark], end: float, width: int, idle: tuple[float, float] = (0.0, 0.0)
) -> list[tuple[str, _Mark | None]]:
    """Runs of columns that belong to one mark (or to none), each with its text.

    ``idle``: the interval in which columns without a mark count as idle.
    """
    starts = [mark.start for mark in shown]
    owners: list[_Mark | None] = []
    for column in range(width):
        middle = (column + 0.5) / width * end
        i = bisect_right(starts, middle) - 1
        owners.append(shown[i] if i >= 0 and middle < shown[i].end else None)
    cells: list[tuple[str, _Mark | None]] = []
    blanks = (_IDLE if idle[0] <= (c + 0.5) / width * end < idle[1] else " " for c in range(width))
    for mark, run in groupby(zip(owners, blanks, strict=True), key=lambda each: each[0]):
        texts = [blank for _, blank in run]
        cells.append((mark.text(len(texts)) if mark else "".join(texts), mark))
    return cells


def _painted(text: str, mark: _Mark | None) -> str:
    if mark is None:
        return f"\x1b[2m{text}\x1b[0m"
    rgb = mark.rgb
    ink = "30" if is_light(rgb) else "97"
    return f"\x1b[{ink};48;2;{rgb[0]};{rgb[1]};{rgb[2]}m{text}\x1b[0m"


def _axis(end: float, width: int) -> str:
    right, middle = duration(end), duration(end / 2)
    text = "0" + middle.rjust(width // 2 + len(middle) // 2 - 1)
    return text + right.rjust(max(len(right) + 1, width - len(text)))


def _legend(schedule: Schedule, colours: bool, memory: float | None) -> str:
    ranks = range(schedule.problem.ranks)
    shown = [bar for rank in ranks for bar in (*bars(schedule, rank), *copies(schedule, rank))]
    parts = []

    def entry(mark: _Mark, sample: str, words: str) -> None:
        parts.append(f"{_painted(sample, mark) if colours else sample} {words}")

    for kind in kinds(schedule):
        mark = _mark(next(bar for bar in shown if bar.op.kind is kind))
        narrow = f" ({_LETTER[kind]} in one column)" if _LETTER[kind] != kind.name else ""
        entry(mark, f"{kind.name}{_FILL[kind] * 2}", f"{NAMES[kind]}{narrow}")
    if any(schedule.pairs):
        mark = _Mark(0.0, 0.0, ("P",), "≡", of_pair(0.0))
        entry(mark, mark.text(3), f"{AT_ONCE}: Pi/j of Fi and BWj")
    if any(averages(schedule, rank) for rank in ranks):
        mark = _Mark(0.0, 0.0, ("A",), "~", AVERAGE)
        entry(mark, mark.text(3), f"{AVERAGED}: Ai of stage i")
    parts.append(f"{_IDLE * 3} bubble")
    if memory is not None:
        parts.append(f"{_LEVELS[1]} to {_LEVELS[-1]} memory held, 0 to {memory_size(memory)}")
    return "   ".join(parts)
