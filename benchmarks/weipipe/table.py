"""The table as Markdown: in each cell the formula, the turns' bubble, the bubble as built."""

from __future__ import annotations

from typing import Any

from .bubbles import TURNS


def render(rows: list[dict[str, Any]]) -> str:
    lines = [line(["P", "M", "T_F/T_B/T_W", *TURNS]), line(["---"] * (3 + len(TURNS)))]
    for at in range(0, len(rows), len(TURNS)):
        group = rows[at : at + len(TURNS)]
        first = group[0]
        head = [str(first["ranks"]), str(first["microbatches"]), first["times"]]
        lines.append(line([*head, *map(_cell, group)]))
    return "\n".join(lines)


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(row: dict[str, Any]) -> str:
    formula = "-" if row["formula"] is None else _digits(row["formula"])
    return f"{formula} / {_digits(row['turns'])} / {_digits(row['built'])}"


def _digits(rate: float) -> str:
    return f"{rate:.4f}"[1:] if 0 <= rate < 1 else f"{rate:.4f}"


def render_counts(rows: list[dict[str, Any]]) -> str:
    header = ["", "turns a microbatch", "H^2 elements in a turn", "for a microbatch of a layer"]
    lines = [line(header), line(["---"] * len(header))]
    for row in rows:
        figures = [f"{row[key]:g}" for key in ("turns", "turn", "microbatch")]
        lines.append(line([row["family"], *figures]))
    return "\n".join(lines)
