"""Tables in the terminal."""

from __future__ import annotations

import textwrap

WIDEST = 150
"""Columns of a table in the terminal, and of the sentences under it."""
LEAST_WORDS = 40
"""Least width of a table's last column, however wide the others are."""


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns aligned by their widest cell, the first and the last to the left, the others to the
    right.

    Words in the last that would go beyond ``WIDEST`` go on in the next line.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    last = len(header) - 1
    before = sum(widths[:last]) + 2 * last
    widths[last] = min(widths[last], max(WIDEST - before, LEAST_WORDS))

    def line(cells: list[str]) -> str:
        words = _wrapped(cells[last], widths[last])
        aligned = [
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip([*cells[:last], words[0]], widths, strict=True))
        ]
        return "\n".join(
            ["  ".join(aligned).rstrip(), *(" " * before + more for more in words[1:])]
        )

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def _wrapped(words: str, width: int) -> list[str]:
    if len(words) <= width:
        return [words]
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
