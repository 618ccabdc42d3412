"""What ``optimize --placement auto`` says of the placements that it has tried."""

from __future__ import annotations

from typing import Any

from pipeloom.solver.placements import Chosen, Tried, cost_of

from .output import table


def as_json(chosen: Chosen) -> dict[str, Any]:
    """The placements, the best first, and the bound for all of them together."""
    cost = None if chosen.best is None else cost_of(chosen.best)
    gap = None if cost is None or chosen.bound is None else max(0.0, (cost - chosen.bound) / cost)
    return {"lower_bound": chosen.bound, "gap": gap, "placements": list(map(_entry, chosen.tried))}


def _entry(tried: Tried) -> dict[str, Any]:
    return {
        "placement": tried.name,
        "cost": None if tried.schedule is None else tried.cost,
        "lower_bound": tried.bound,
        "reason": tried.why_not
        or (None if tried.schedule else "its bound is no lower, or no time"),
    }


def text(chosen: Chosen) -> str:
    """A table, and how far the best is from the best of all these placements."""
    from pipeloom.report.words import duration, percent

    rows = []
    for tried in chosen.tried:
        bound = "-" if tried.bound is None else duration(tried.bound)
        cost = "-" if tried.schedule is None else duration(tried.cost)
        note = tried.why_not or (
            "" if tried.schedule else "not searched: cannot be shorter, or no time"
        )
        rows.append([tried.name, cost, bound, note])
    lines = table(["placement", "found", "bound", ""], rows)
    answer = as_json(chosen)
    if answer["gap"] is None:
        return lines
    return f"{lines}\nof all these placements: at most {percent(answer['gap'])} from the best"
