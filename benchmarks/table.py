"""Tables in Markdown, and the passages of pages that are generated from records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from . import Row, Rows, Table

PASSAGE = re.compile(r"(<!-- (rows|claims) ?([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
"""A generated passage of a page.

It begins with ``<!-- rows BENCHMARK PART -->`` or ``<!-- claims KEY ... -->`` and ends with ``<!--
end -->``.
"""


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def digits(rate: float) -> str:
    """A bubble rate with four decimals, in the notation of the papers: ``.1323``."""
    return f"{rate:.4f}"[1:] if 0 <= rate < 1 else f"{rate:.4f}"


def rendered(table: Table, rows: Rows) -> list[str]:
    """The lines of the Markdown table of a part."""
    return markdown([column.head for column in table.columns], _lines(table, rows))


def _lines(table: Table, rows: Rows) -> Iterator[list[str]]:
    shown = [row for row in rows if table.where(row)]
    if table.by is None:
        yield from (line(table, row) for row in shown)
        return
    sound = [row for row in shown if "failed" not in row]
    groups: dict[object, list[Row]] = {}
    for row in sound:
        groups.setdefault(table.by(row), []).append(row)
    yield from ([column.cell(group) for column in table.columns] for group in groups.values())
    if table.total and len(groups) > 1:
        yield ["all", *(column.cell(sound) for column in table.columns[1:])]


def line(table: Table, row: Row) -> list[str]:
    """The cells of one row, in a table without groups."""
    if "failed" in row:
        return [row["case"], row["failed"], *[""] * (len(table.columns) - 2)]
    return [column.cell(row) for column in table.columns]


def filled(page: str, passage: Callable[[str, list[str]], list[str]]) -> str:
    """The text of ``page`` with new content in each generated passage.

    ``passage(kind, words)`` returns the lines of a passage; ``kind`` is ``rows`` or ``claims``, and
    ``words`` are the words that follow it in the comment.
    """

    def written(match: re.Match[str]) -> str:
        lines = passage(match[2], match[3].split())
        return "\n".join([match[1].rstrip("\n"), "", *lines, "", match[4]])

    return PASSAGE.sub(written, page)
