"""The table as Markdown: published / own in each cell, the bound where one is proven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..markdown import digits, markdown


def render(rows: Sequence[dict[str, Any]], heading: bool = True) -> str:
    lines = [
        [
            row["model"],
            str(row["ranks"]),
            str(row["microbatches"]),
            *map(_cell, row["cells"].values()),
        ]
        for row in rows
    ]
    whole = markdown(["model", "P", "M", *rows[0]["cells"]], lines)
    return "\n".join(whole if heading else whole[2:])


def _cell(cell: dict[str, Any]) -> str:
    text = f"{digits(cell['published'])} / {digits(cell['own'])}"
    if cell.get("status") == "optimal":
        return f"{text} optimal"
    if cell.get("bound") is not None:
        return f"{text} (bound {digits(cell['bound'])})"
    return text
