"""Why a scheme is chosen: a table of all of them, and a sentence for each that is not."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from pipeloom.ir.units import amount, duration
from pipeloom.report.summaries import percent
from pipeloom.report.text_table import table

from ..evaluation.evaluation import Judged
from .choose import Choice, Row

SIZES = [2.0**k for k in range(-6, 7)]
"""Microbatches at which steps are compared, in multiples of the profile's."""
HALVINGS = 6
HEADER = [
    "scheme",
    "step",
    "bubble",
    "busiest wire",
    "bytes",
    "busy",
    "peak memory",
    "",
    "schedule",
]


def as_json(choice: Choice) -> dict[str, Any]:
    """The table and the sentences; ``choice`` of the command's answer."""
    return {
        "scheme": choice.best.scheme if choice.best else None,
        "schemes": [_entry(row) for row in choice.rows],
        "reasons": choice.reasons,
    }


def _entry(row: Row) -> dict[str, Any]:
    judged = row.judged
    if judged is None:
        return {"scheme": row.scheme, "fits": False, "why_not": row.why_not}
    return {
        "scheme": row.scheme,
        "schedule": judged.family,
        "step": judged.step,
        "bubble_rate": judged.bubble,
        "wire": None if judged.wire is None else asdict(judged.wire),
        "wire_use": judged.wire_use,
        "device_memory": list(judged.memory.total),
        "fits": row.why_not is None,
        "why_not": row.why_not,
    }


def text(choice: Choice) -> str:
    """The table, then the sentences."""
    rows = [_cells(row, choice.best) for row in choice.rows]
    return "\n".join([table(HEADER, rows), "", *choice.reasons])


def _cells(row: Row, best: Judged | None) -> list[str]:
    judged = row.judged
    if judged is None:
        return [row.scheme, *["-"] * (len(HEADER) - 2), row.why_not or ""]
    wire = ["-"] * 3
    if judged.wire is not None and judged.wire_use is not None:
        wire = [judged.wire.name, amount(judged.wire.bytes), percent(judged.wire_use)]
    return [
        row.scheme,
        duration(judged.step),
        percent(judged.bubble),
        *wire,
        amount(max(judged.memory.total)),
        "does not fit" if row.why_not else _against(judged, best),
        judged.family.removeprefix(f"{row.scheme}, "),
    ]


def _against(judged: Judged, best: Judged | None) -> str:
    if best is None or judged.scheme == best.scheme:
        return "chosen"
    return f"+{percent(judged.step / best.step - 1)}" if best.step > 0 else ""


def sentences(choice: Choice) -> list[str]:
    """What decides for the best scheme, and against the best of each other kind; where nothing
    fits, why."""
    if choice.best is None:
        return [f"{row.scheme}: {row.why_not}" for row in choice.rows]
    lines = [_chosen(choice.best, choice.usable[1:])]
    seen = {choice.best.scheme.partition(":")[0]}
    for row in choice.rows:
        if row.base not in seen:
            seen.add(row.base)
            lines.append(_not_chosen(row, choice.best))
    return lines


def _chosen(best: Judged, others: list[Judged]) -> str:
    line = f"{best.scheme}: {duration(best.step)} a step"
    if others and others[0].step > 0:
        less, other = percent(1 - best.step / others[0].step), others[0].scheme
        level = less == percent(0.0)
        line += f", as with {other}" if level else f", {less} less than {other}, the next best"
    return f"{line}; {limits(best)}"


def _not_chosen(row: Row, best: Judged) -> str:
    if row.why_not is not None or row.judged is None:
        return f"{row.scheme}: {row.why_not}"
    line = f"{row.scheme}: {duration(row.judged.step)}; {limits(row.judged)}"
    turn = turns(row.judged, best)
    return line if turn is None else f"{line}; it wins {turn}"


def limits(judged: Judged) -> str:
    """What the busiest rank and the busiest wire do of a step, the one that does more first."""
    computing = max(
        float((end - start).sum())
        for start, end in zip(judged.timing.start, judged.timing.end, strict=True)
    )
    share = computing / judged.step if judged.step > 0 else 0.0
    parts = [(share, f"its busiest rank computes {percent(share)} of it")]
    wire, use = judged.wire, judged.wire_use
    if wire is not None and use is not None:
        weights = wire.weight_bytes > wire.bytes / 2
        what = "weights and gradients" if weights else "activations and their gradients"
        parts.append((use, f"wire {wire.name} carries {what} for {percent(use)} of it"))
    return ", ".join(words for _, words in sorted(parts, reverse=True))


def turns(loser: Judged, winner: Judged) -> str | None:
    """From or up to which size of microbatch ``loser`` is faster, the size nearest to the
    profile's.

    None where it is at no size tried, or there are no links to say what a size costs.
    """
    if loser.profile.links is None:
        return None

    def wins(size: float) -> bool:
        return loser.step_at(size) < winner.step_at(size)

    better = [size for size in SIZES if wins(size)]
    if not better:
        return None
    nearest = min(better, key=lambda size: abs(math.log(size)))
    low, high = nearest, nearest * (0.5 if nearest > 1 else 2.0)  # wins, does not
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if wins(middle) else (low, middle)
    side = "from" if nearest > 1 else "up to"
    return f"{side} microbatches {low:.2g} times as large" + (" on" if nearest > 1 else "")
