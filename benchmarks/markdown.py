"""Tables in Markdown, as benchmarks print them and their pages have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(
    head: Sequence[str], rows: Iterable[Sequence[str]], left: int | None = None
) -> list[str]:
    """The lines of a table; columns from the one with number ``left`` on are set to the right."""
    first = len(head) if left is None else left
    rule = ["---"] * first + ["---:"] * (len(head) - first)
    return [line(cells) for cells in (head, rule, *rows)]


def line(cells: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"


def digits(rate: float) -> str:
    """A bubble rate as the papers have it: ``.1323``."""
    return f"{rate:.4f}"[1:] if 0 <= rate < 1 else f"{rate:.4f}"
