"""The table as Markdown: in each cell the formula, the turns' bubble, the bubble as built."""

from __future__ import annotations

from typing import Any

from ..markdown import digits, markdown
from .bubbles import TURNS


def render(rows: list[dict[str, Any]]) -> str:
    lines = []
    for at in range(0, len(rows), len(TURNS)):
        group = rows[at : at + len(TURNS)]
        first = group[0]
        head = [str(first["ranks"]), str(first["microbatches"]), first["times"]]
        lines.append([*head, *map(_cell, group)])
    return "\n".join(markdown(["P", "M", "T_F/T_B/T_W", *TURNS], lines))


def _cell(row: dict[str, Any]) -> str:
    formula = "-" if row["formula"] is None else digits(row["formula"])
    return f"{formula} / {digits(row['turns'])} / {digits(row['built'])}"


def render_counts(rows: list[dict[str, Any]]) -> str:
    header = ["", "turns a microbatch", "H^2 elements in a turn", "for a microbatch of a layer"]
    keys = ("turns", "turn", "microbatch")
    lines = [[row["family"], *(f"{row[key]:g}" for key in keys)] for row in rows]
    return "\n".join(markdown(header, lines))


def render_optimized(rows: list[dict[str, Any]]) -> str:
    header = [
        "P", "M", "hop", "wires", "limit", "objective", "published", "bubble", "gap", "bound",
        "step, published", "step", "schedule",
    ]  # fmt: skip
    lines = []
    for row in rows:
        limit = "-" if row["memory_limit"] is None else f"{row['memory_limit']:g}"
        head = [
            row["ranks"],
            row["microbatches"],
            row["hop"],
            row["shared"],
            limit,
            row["objective"],
        ]
        rates = [digits(row["published"]), digits(max(0.0, row["bubble"])), f"{row['gap']:.2%}"]
        steps = [f"{row[key]:.1f}" for key in ("published_step", "step")]
        lines.append([*map(str, head), *rates, row["bound"], *steps, row["schedule"]])
    return "\n".join(markdown(header, lines))
