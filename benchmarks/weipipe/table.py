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


def render_optimized(rows: list[dict[str, Any]]) -> str:
    header = [
        "P", "M", "hop", "wires", "limit", "objective", "published", "bubble", "gap", "bound",
        "step, published", "step", "schedule",
    ]  # fmt: skip
    lines = [line(header), line(["---"] * len(header))]
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
        rates = [_digits(row["published"]), _digits(max(0.0, row["bubble"])), f"{row['gap']:.2%}"]
        steps = [f"{row[key]:.1f}" for key in ("published_step", "step")]
        lines.append(line([*map(str, head), *rates, row["bound"], *steps, row["schedule"]]))
    return "\n".join(lines)
