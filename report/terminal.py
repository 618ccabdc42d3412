"""The timeline in a terminal: a row a rank, as many columns of time as fit.

Each column shows the op that runs at its middle. An op is its kind and microbatch, filled up with
a character of its kind, so that the picture reads without colour::

    rank 0 │F0─F1─F2─────····B0══W0┄F3─
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from pipeloom.ir.ops import OpKind
from pipeloom.ir.schedule import Schedule

from .bars import Bar, bars, kinds, timed, times
from .colours import NAMES, colour, is_light
from .words import duration, heading, shape, summary

_FILL = {OpKind.F: "─", OpKind.B: "═", OpKind.W: "┄", OpKind.BW: "━", OpKind.R: "╌"}
# where one column is all that an op has
_LETTER = {OpKind.F: "F", OpKind.B: "B", OpKind.W: "W", OpKind.BW: "D", OpKind.R: "R"}
_IDLE = "·"


def timeline_text(
    schedule: Schedule, *, title: str | None = None, columns: int = 100, colours: bool = False
) -> str:
    """The schedule in ``columns`` characters a line, with ANSI colours where asked for."""
    schedule = timed(schedule)
    end = times(schedule).makespan
    head = max(len(f"rank {rank}") for rank in range(schedule.problem.ranks)) + 2
    width = max(10, columns - head - 1)
    lines = [f"{title or heading(schedule)}, {shape(schedule)}"]
    for rank in range(schedule.problem.ranks):
        cells = _cells([_beside(bar) for bar in bars(schedule, rank)], end, width)
        row = "".join(_painted(text, bar) if colours else text for text, bar in cells)
        lines.append(f"{f'rank {rank}':<{head - 1}}│{row}│")
    lines += [" " * head + _axis(end, width), _legend(schedule, colours), summary(schedule)]
    return "\n".join(lines) + "\n"


def _beside(bar: Bar) -> Bar:
    """What runs at once is shown side by side."""
    middle = (bar.start + bar.end) / 2
    if bar.half is None:
        return bar
    return replace(bar, start=middle) if bar.half else replace(bar, end=middle)


def _cells(shown: list[Bar], end: float, width: int) -> list[tuple[str, Bar | None]]:
    """Runs of columns that belong to one bar (or to none), each with its text."""
    starts = [bar.start for bar in shown]
    owners: list[Bar | None] = []
    for column in range(width):
        middle = (column + 0.5) / width * end
        i = bisect_right(starts, middle) - 1
        owners.append(shown[i] if i >= 0 and middle < shown[i].end else None)
    runs: list[tuple[Bar | None, int]] = []
    for bar in owners:
        if runs and runs[-1][0] is bar:
            runs[-1] = (bar, runs[-1][1] + 1)
        else:
            runs.append((bar, 1))
    begin, finish = (shown[0].start, shown[-1].end) if shown else (end, 0.0)
    cells, at = [], 0
    for bar, length in runs:
        inside = begin <= (at + 0.5) / width * end < finish
        cells.append((_text(bar, length) if bar else (_IDLE if inside else " ") * length, bar))
        at += length
    return cells


def _text(bar: Bar, length: int) -> str:
    """``F12──``, or ``F──`` where the number does not fit, or ``F``."""
    kind, fill = bar.op.kind, _FILL[bar.op.kind]
    name = f"{kind.name}{bar.op.microbatch}"
    if len(name) > length:
        name = kind.name if len(kind.name) < length else _LETTER[kind]
    return name + fill * (length - len(name))


def _painted(text: str, bar: Bar | None) -> str:
    if bar is None:
        return f"\x1b[2m{text}\x1b[0m"
    rgb = colour(bar.op.kind, bar.shade)
    ink = "30" if is_light(rgb) else "97"
    return f"\x1b[{ink};48;2;{rgb[0]};{rgb[1]};{rgb[2]}m{text}\x1b[0m"


def _axis(end: float, width: int) -> str:
    right, middle = duration(end), duration(end / 2)
    text = "0" + middle.rjust(width // 2 + len(middle) // 2 - 1)
    return text + right.rjust(max(len(right) + 1, width - len(text)))


def _legend(schedule: Schedule, colours: bool) -> str:
    parts = []
    for kind in kinds(schedule):
        if kind.copies:  # beside the ops: there is no row for them here
            continue
        sample = f"{kind.name}{_FILL[kind] * 2}"
        bar = next(
            b for r in range(schedule.problem.ranks) for b in bars(schedule, r) if b.op.kind is kind
        )
        narrow = f" ({_LETTER[kind]} in one column)" if _LETTER[kind] != kind.name else ""
        parts.append(f"{_painted(sample, bar) if colours else sample} {NAMES[kind]}{narrow}")
    return "   ".join([*parts, f"{_IDLE * 3} bubble"])
