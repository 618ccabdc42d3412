"""Why ``optimize --passing auto`` chose a scheme: a table of all schemes, and a sentence for
each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.schedule import OPTIMIZED
from pipeloom.ir.units import duration
from pipeloom.report.summaries import percent

from ..results import table as of
from ..results.result import Result
from ..results.table import Column, results_table

SIZES = [2.0**k for k in range(-6, 7)]
"""Microbatch sizes for which the steps of two schemes are compared, as multiples of the profile's
size."""
HALVINGS = 6
COLUMNS = (
    of.SCHEME, of.STEP, of.STEP_BUBBLE, of.WIRE, of.WIRE_BYTES, of.WIRE_USE, of.DEVICE_MEMORY,
)  # fmt: skip


def schemes_table(rows: Sequence[Result], best: Result | None) -> str:
    """Return a table of the results ``rows`` of the schemes.

    ``best``: the result that was chosen, or None if none fits.
    """

    def against(row: Result) -> str:
        if best is None or row.scheme == best.scheme:
            return "chosen"
        return f"+{percent(row.step_time / best.step_time - 1)}" if best.step_time > 0 else ""

    chosen = ("", lambda row: "does not fit" if row.why_not else against(row))
    return results_table(rows, [*COLUMNS, Column(*chosen), Column("schedule", _named)])


def _named(row: Result) -> str:
    """Return the name of a result's schedule: a family, or ``optimized``, with its placement if the
    placement was chosen too."""
    if row.name != OPTIMIZED or row.passing is Passing.WEIGHTS:
        return row.name
    return f"{row.name}, {row.schedule.problem.placement.name}"


def sentences(rows: Sequence[Result], best: Result | None) -> list[str]:
    """Return a sentence on the chosen scheme and one on each other scheme.

    ``rows``: the results of the schemes. ``best``: the chosen one. If it is None, the reasons why
    the schemes do not fit are returned instead.
    """
    if best is None:
        return [f"{row.scheme}: {row.why_not}" for row in rows]
    others = [row for row in rows if row.scheme != best.scheme]
    usable = [row for row in others if row.why_not is None]
    return [_chosen(best, usable), *(_not_chosen(row, best) for row in others)]


def _chosen(best: Result, others: list[Result]) -> str:
    line = f"{best.scheme}: {duration(best.step_time)} per step"
    if others and others[0].step_time > 0:
        less, other = percent(1 - best.step_time / others[0].step_time), others[0].scheme
        level = less == percent(0.0)
        line += f", as with {other}" if level else f", {less} less than {other}, the next best"
    return f"{line}; {limits(best)}"


def _not_chosen(row: Result, best: Result) -> str:
    if row.why_not is not None:
        return f"{row.scheme}: {row.why_not}"
    line = f"{row.scheme}: {duration(row.step_time)}; {limits(row)}"
    turn = turns(row, best)
    return line if turn is None else f"{line}; it wins {turn}, if these fit"


def limits(row: Result) -> str:
    """Return, in words, two shares of the step: the one in which the busiest rank computes, and the
    one in which the busiest wire is in use. The larger share comes first; without links, there is
    only that of the rank."""
    computing = max(float(took.sum()) for took in row.timing.took)
    share = computing / row.step_time if row.step_time > 0 else 0.0
    parts = [(share, f"its busiest rank computes {percent(share)} of it")]
    wire, use = row.wire, row.wire_use
    if wire is not None and use is not None:
        weights = wire.weight_bytes > wire.bytes / 2
        what = "weights and gradients" if weights else "activations and their gradients"
        parts.append((use, f"wire {wire.name} carries {what} for {percent(use)} of it"))
    return ", ".join(words for _, words in sorted(parts, reverse=True))


def turns(loser: Result, winner: Result) -> str | None:
    """Return, in words, for which microbatch sizes ``loser`` has a shorter step than ``winner``:
    from a certain size, or up to it.

    If there are several such ranges, the one nearest to the profile's size is returned. None if
    ``loser`` is faster at none of the :data:`SIZES`, or if the profile has no links.
    """
    if loser.profile.links is None:
        return None

    def wins(size: float) -> bool:
        return loser.step_time_at(size) < winner.step_time_at(size)

    better = [size for size in SIZES if wins(size)]
    if not better:
        return None
    nearest = min(better, key=lambda size: abs(math.log(size)))
    size = turning_size(wins, nearest, nearest * (0.5 if nearest > 1 else 2.0))
    side = "from" if nearest > 1 else "up to"
    return f"{side} microbatches {size:.2g} times as large" + (" on" if nearest > 1 else "")


def turning_size(holds: Callable[[float], bool], there: float, not_there: float) -> float:
    """Return the size, between two others, at which a condition changes from true to false.

    ``holds``: the condition. ``there``: a size for which it is true. ``not_there``: a size for
    which it is false. Bisection on a logarithmic scale gives the size, approximately; the condition
    is true for the size returned.
    """
    for _ in range(HALVINGS):
        middle = math.sqrt(there * not_there)
        there, not_there = (middle, not_there) if holds(middle) else (there, middle)
    return there
