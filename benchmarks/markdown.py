"""Tables in Markdown of programs that have no rows of their own yet."""

from __future__ import annotations

from collections.abc import Sequence

from .table import markdown

__all__ = ["line", "markdown"]


def line(cells: Sequence[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"
