"""The table as Markdown: published / own in each cell, the bound where one is proven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def render(rows: Sequence[dict[str, Any]], heading: bool = True) -> str:
    lines = []
    if heading:
        names = ["model", "P", "M", *rows[0]["cells"]]
        lines = [_line(names), _line(["---"] * len(names))]
    for row in rows:
        cells = [_cell(cell) for cell in row["cells"].values()]
        lines.append(_line([row["model"], str(row["ranks"]), str(row["microbatches"]), *cells]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: dict[str, Any]) -> str:
    text = f"{_digits(cell['published'])} / {_digits(cell['own'])}"
    if cell.get("status") == "optimal":
        return f"{text} optimal"
    if cell.get("bound") is not None:
        return f"{text} (bound {_digits(cell['bound'])})"
    return text


def _digits(rate: float) -> str:
    return f"{rate:.4f}"[1:] if 0 <= rate < 1 else f"{rate:.4f}"
