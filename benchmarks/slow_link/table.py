"""The recorded results as the table of the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADER = ("configuration", "scheme", "predicted ms", "measured ms", "error", "slow link, MB a step")


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """One line a scheme; ``<`` marks the fastest, ``auto`` what auto picks."""
    rows = [HEADER, ("---",) * len(HEADER)]
    for result in results:
        rows += [_row(result, scheme) for scheme in result["schemes"]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(result: Mapping[str, Any], scheme: Mapping[str, Any]) -> tuple[str, ...]:
    marks = [mark for mark in ("auto", "winner") if result[mark] == scheme["kind"]]
    slow = max(scheme["wires"][result["ring"]["slow"]])
    first = scheme is result["schemes"][0]
    return (
        result["name"] if first else "",
        " ".join([f"{scheme['kind']} ({scheme['schedule']})", *marks]),
        f"{scheme['predicted_ms']:.0f}",
        f"{scheme['measured_ms']:.0f} ({scheme['least_ms']:.0f}-{scheme['most_ms']:.0f})",
        f"{scheme['error']:+.1%}",
        f"{slow / 1e6:.2f}",
    )
