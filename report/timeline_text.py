"""The timeline as text for a terminal: one row per rank, and as many columns as fit.

Each column shows the op that runs at the middle of its time interval. An op is shown as its kind
and microbatch, followed by a fill character for its kind, so that the picture can be read without
colors. A pair, two ops that run at the same time, is one cell with both microbatches. Copies to and
from the host have their own rows::

    rank 0 │F0─F1─F2─····B0══W0┄P3/1≡≡≡≡
        out│   O0→→→
        mem│▁▁▃▃▅▅▅▅▅▅▃▃▂▂▃▃▃▃▃▃▃
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise

import numpy as np

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration, memory_size

from .bars import Bar, RankBars, last, rows, timed
from .colours import AT_ONCE, AVERAGE, AVERAGED, NAMES, PAIR, Colour, is_light
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
    """An op, pair or average from ``start`` to ``end`` in ms.

    It is shown as the first of ``names`` that fits, followed by ``fill``.
    """

    start: float
    end: float
    names: tuple[str, ...]
    fill: str
    rgb: Colour

    def text(self, length: int) -> str:
        """The mark as text of ``length`` characters: ``F12──``, or ``F──`` if the number does not
        fit, or ``F``."""
        name = next((name for name in self.names if len(name) <= length), self.names[-1])
        return name + self.fill * (length - len(name))


@dataclass(frozen=True, slots=True)
class _Page:
    """The layout of a picture: ``width`` columns for the times from 0 to ``end`` in ms.

    ``colours``: whether text has ANSI colors.
    """

    width: int
    end: float
    colours: bool

    def line(self, marks: Sequence[_Mark], idle: tuple[float, float] = (0.0, 0.0)) -> str:
        """A row of marks as text.

        Columns without a mark are shown as idle within the interval ``idle`` (start and end in ms),
        and as blanks outside of it.
        """
        starts = [mark.start for mark in marks]
        cells: list[tuple[_Mark | None, str]] = []
        for column in range(self.width):
            middle = (column + 0.5) / self.width * self.end
            i = bisect_right(starts, middle) - 1
            mark = marks[i] if i >= 0 and middle < marks[i].end else None
            cells.append((mark, _IDLE if idle[0] <= middle < idle[1] else " "))
        runs = [(mark, list(run)) for mark, run in groupby(cells, key=lambda cell: cell[0])]
        return "".join(
            self.painted(mark.text(len(run)) if mark else "".join(blank for _, blank in run), mark)
            for mark, run in runs
        )

    def painted(self, text: str, mark: _Mark | None) -> str:
        if not self.colours:
            return text
        if mark is None:
            return f"\x1b[2m{text}\x1b[0m"
        ink, (red, green, blue) = "30" if is_light(mark.rgb) else "97", mark.rgb
        return f"\x1b[{ink};48;2;{red};{green};{blue}m{text}\x1b[0m"

    def levels(self, steps: Sequence[tuple[float, float]], most: float) -> str:
        """One block character per column: the maximum memory held during the column's time.

        ``steps``: pairs (time in ms, memory held from then on); ``most``: the memory shown at full
        height.
        """
        held, scale = np.zeros(self.width), self.width / self.end if self.end > 0 else 0.0
        for (start, size), (stop, _) in pairwise([*steps, (self.end, 0.0)]):
            columns = slice(int(start * scale), math.ceil(stop * scale))
            held[columns] = np.maximum(held[columns], size)
        levels = np.ceil(held / most * (len(_LEVELS) - 1) - 1e-9) if most > 0 else held
        heights = np.minimum(levels, len(_LEVELS) - 1).astype(int).tolist()
        return "".join(_LEVELS[height] for height in heights)

    def axis(self) -> str:
        right, middle = duration(self.end), duration(self.end / 2)
        text = "0" + middle.rjust(self.width // 2 + len(middle) // 2 - 1)
        return text + right.rjust(max(len(right) + 1, self.width - len(text)))


def timeline_text(
    schedule: Schedule,
    *,
    name: str | None = None,
    columns: int = 100,
    colours: bool = False,
    memory: float | None = None,
    end: float | None = None,
) -> str:
    """The schedule as text: a title, the rows with axis and legend, and a summary.

    ``name``: the user's name for the schedule. ``columns``: characters per line. ``colours``: use
    ANSI colors. ``memory``: if given, also draw each rank's memory over time, with this as full
    scale. ``end``: the end of the time axis in ms, by default that of the schedule.
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
    """The rows, the axis and the legend of :func:`timeline_text`, without title and summary."""
    schedule = timed(schedule)
    found, head = rows(schedule), len(f"rank {schedule.problem.ranks - 1}") + 2
    page = _Page(max(10, columns - head - 1), last(schedule) if end is None else end, colours)
    lines, below = [], _rows_of_copies(found)
    for row in found:
        line = page.line([*_marks(row.ops)], row.counted)
        lines.append(f"rank {row.rank}".ljust(head - 1) + f"│{line}│")
        beside = [(name, page.line(_copies(row, kinds, page))) for name, kinds in below.items()]
        if row.averages:
            beside.append(("avg", page.line(list(map(_mark, row.averages)))))
        if memory is not None:
            beside.append(("mem", page.painted(page.levels(row.memory, memory), None)))
        lines += [f"{name.rjust(head - 1)}│{line}│" for name, line in beside]
    legend = "   ".join(_legend(found, page, memory))
    return "\n".join([*lines, " " * head + page.axis(), legend])


def _rows_of_copies(found: Sequence[RankBars]) -> dict[str, tuple[OpKind, ...]]:
    """The rows for copies below each rank's row: the kinds of copies in a row, by the row's name.

    There is one row for both directions, or one per direction if copies of a rank overlap. The
    dictionary is empty if there are no copies.
    """
    if not any(row.copies for row in found):
        return {}
    copies = (sorted(row.copies, key=lambda bar: bar.start) for row in found)
    if any(after.start < before.end for row in copies for before, after in pairwise(row)):
        return {name: (kind,) for kind, name in _COPIES.items()}
    return {"host": tuple(_COPIES)}


def _copies(row: RankBars, kinds: Sequence[OpKind], page: _Page) -> list[_Mark]:
    """The marks of a rank's copies, each at least one column wide, so that all are visible."""
    bars = (bar for bar in row.copies if bar.op and bar.op.kind in kinds)
    marks, least = map(_mark, sorted(bars, key=lambda bar: bar.start)), page.end / page.width
    return [replace(mark, end=max(mark.end, mark.start + least)) for mark in marks]


def _marks(bars: Iterable[Bar]) -> Iterator[_Mark]:
    """Yield one mark per bar, but a single mark for the two ops of a pair."""
    first: Bar | None = None
    for bar in bars:
        if bar.half == 0:
            first = bar
        elif bar.half is None or first is None:
            yield _mark(bar)
        else:
            assert first.op is not None
            assert bar.op is not None
            number = first.op.microbatch
            names = (f"P{number}/{bar.op.microbatch}", f"P{number}", "P")
            yield _Mark(first.start, bar.end, names, "≡", PAIR)


def _mark(bar: Bar) -> _Mark:
    if bar.op is None:  # an average
        name = bar.name.replace("average ", "A")
        return _Mark(bar.start, bar.end, (name, "A"), "~", bar.rgb)
    kind, fill = bar.op.kind, _FILL[bar.op.kind]
    # BW in two columns would read as a B and a W
    short = f"BW{fill}" if kind is OpKind.BW else kind.name
    names = (f"{kind.name}{bar.op.microbatch}", short, _LETTER[kind])
    return _Mark(bar.start, bar.end, names, fill, bar.rgb)


def _legend(found: Sequence[RankBars], page: _Page, memory: float | None) -> Iterator[str]:
    every = chain.from_iterable((*row.ops, *row.copies) for row in found)
    first = {bar.op.kind: bar for bar in reversed([*every]) if bar.op}
    for kind in sorted(first):
        narrow = f" ({_LETTER[kind]} in one column)" if _LETTER[kind] != kind.name else ""
        sample = page.painted(f"{kind.name}{_FILL[kind] * 2}", _mark(first[kind]))
        yield f"{sample} {NAMES[kind]}{narrow}"
    if any(bar.half is not None for row in found for bar in row.ops):
        sample = page.painted("P≡≡", _Mark(0.0, 0.0, (), "", PAIR))
        yield f"{sample} {AT_ONCE}: Pi/j of Fi and BWj"
    if any(row.averages for row in found):
        sample = page.painted("A~~", _Mark(0.0, 0.0, (), "", AVERAGE))
        yield f"{sample} {AVERAGED}: Ai of stage i"
    yield f"{_IDLE * 3} bubble"
    if memory is not None:
        yield f"{_LEVELS[1]} to {_LEVELS[-1]} memory held, 0 to {memory_size(memory)}"
