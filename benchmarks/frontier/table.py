"""The cells as a Markdown table; limits are multiples of P x M_B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..markdown import line, markdown
from .targets import MIB

HEADER = (
    "instance", "P", "M", "limit", "bubble", "published", "bound", "gap", "s", "CPU s", "MiB",
    "proven by",
)  # fmt: skip


def render(cells: Mapping[str, dict[str, Any]]) -> str:
    return "\n".join([*heading(), *(row(name, cell) for name, cell in cells.items())])


def widest(cells: Mapping[str, dict[str, Any]], count: int) -> str:
    """The ``count`` cells with the widest gaps."""
    open_cells = [name for name, cell in cells.items() if cell.get("status") == "feasible"]
    ranked = sorted(open_cells, key=lambda name: -cells[name]["gap"])
    return render({name: cells[name] for name in ranked[:count]})


def heading() -> list[str]:
    return markdown(HEADER, ())


def row(name: str, cell: dict[str, Any]) -> str:
    if "error" in cell:
        return line([name, cell["error"], *[""] * (len(HEADER) - 2)])
    published = cell["published"]
    return line(
        [
            name,
            str(cell["ranks"]),
            str(cell["microbatches"]),
            "" if cell["share"] is None else f"{cell['share']:.3g}",
            _rate(cell["bubble"]),
            "" if published is None else f"{published:.4f}",
            _rate(cell["bound_bubble"]),
            "optimal" if cell["status"] == "optimal" else f"{cell['gap'] * 100:.3g} %",
            f"{cell['seconds']:.1f}",
            f"{cell['cpu_seconds']:.1f}",
            f"{cell['peak_rss'] / MIB:.0f}",
            cell["bound_name"],
        ]
    )


def _rate(value: float) -> str:
    return f"{value:.4f}"
