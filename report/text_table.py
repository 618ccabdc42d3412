"""Tables as text for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from pipeloom.ir.units import duration

WIDEST = 150
"""The maximum width, in characters, of a table in the terminal and of the text below it."""
LEAST_WORDS = 40
"""The minimum width, in characters, to which a table's last column is wrapped."""

Cell: TypeAlias = str | float | None
"""Text, a time in milliseconds, or None, which is shown as ``-``."""


def table(header: list[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table as text, whose first and last columns are aligned to the left, all others to the
    right.

    All times in a column are shown in the same unit. Text in the last column is wrapped if the
    table would be wider than ``WIDEST``.
    """
    columns = [_shown(column) for column in zip(header, *rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    last = len(header) - 1
    before = sum(widths[:last]) + 2 * last
    widths[last] = min(widths[last], max(WIDEST - before, LEAST_WORDS))

    def line(cells: Sequence[str]) -> str:
        words = _wrapped(cells[last], widths[last])
        aligned = [
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip([*cells[:last], words[0]], widths, strict=True))
        ]
        return "\n".join(
            ["  ".join(aligned).rstrip(), *(" " * before + more for more in words[1:])]
        )

    first, *others = zip(*columns, strict=True)
    return "\n".join(map(line, [first, ["-" * width for width in widths], *others]))


def _shown(column: Sequence[Cell]) -> list[str]:
    most = max((cell for cell in column if isinstance(cell, float)), default=0.0)

    def shown(cell: Cell) -> str:
        if isinstance(cell, float):
            return duration(cell, most) if cell > 1e-6 else "0"
        return "-" if cell is None else cell

    return list(map(shown, column))


def _wrapped(words: str, width: int) -> list[str]:
    if len(words) <= width:
        return [words]
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
