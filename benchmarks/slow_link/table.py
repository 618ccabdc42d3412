"""The recorded results as the table of the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..markdown import markdown

HEADER = (
    "configuration", "scheme", "schedule", "predicted ms", "measured ms", "error",
    "MB a step over the slow link",
)  # fmt: skip


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """One line a scheme; says which ones are fastest and which one auto picks."""
    rows = [_row(result, scheme) for result in results for scheme in result["schemes"]]
    return "\n".join(markdown(HEADER, rows))


def _row(result: Mapping[str, Any], scheme: Mapping[str, Any]) -> tuple[str, ...]:
    name = scheme["scheme"]
    marks = ["auto"] * (name == result["auto"]) + ["fastest"] * (name in result["winners"])
    slow = max(scheme["wires"][result["ring"]["slow"]])
    return (
        result["name"] if scheme is result["schemes"][0] else "",
        name + (f" ({', '.join(marks)})" if marks else ""),
        scheme["schedule"],
        f"{scheme['predicted_ms']:.0f}",
        f"{scheme['measured_ms']:.0f} ({scheme['least_ms']:.0f}-{scheme['most_ms']:.0f})",
        f"{scheme['error']:+.1%}",
        f"{slow / 1e6:.2f}",
    )
