"""Targets of each set, and its results: medians, percentiles, how many are optimal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Cell = dict[str, Any]
Check = tuple[str, bool]
"""A sentence, and whether the target it names is met."""

MIB = 2**20


def summarize(cells: Mapping[str, Cell]) -> str:
    """One line on what the cells reach together."""
    done = _done(cells)
    failed = len(cells) - len(done)
    if not done:
        return f"{failed} cells, none finished"
    gaps = [cell["gap"] for cell in done]
    parts = [
        f"{len(done)} cells, {_optimal(done)} optimal",
        f"gap median {_percent(np.median(gaps))}, 95th percentile "
        f"{_percent(np.percentile(gaps, 95))}, worst {_percent(max(gaps))}",
        f"seconds median {np.median([c['seconds'] for c in done]):.1f}, "
        f"most {max(c['seconds'] for c in done):.1f}",
        f"peak memory {max(c['peak_rss'] for c in done) / MIB:.0f} MiB",
    ]
    better = [c for c in done if c.get("published") is not None]
    if better:
        beaten = sum(round(c["bubble"], 4) < c["published"] for c in better)
        worse = sum(round(c["bubble"], 4) > c["published"] for c in better)
        parts.append(
            f"of {len(better)} published figures {beaten} improved, "
            f"{len(better) - beaten - worse} met, {worse} missed"
        )
    return "; ".join(parts + ([f"{failed} FAILED"] if failed else []))


def _table5(cells: Mapping[str, Cell]) -> list[Check]:
    done = _done(cells)
    late = sum(c["seconds"] > (10 if c["ranks"] <= 8 else 30) * 1.1 for c in done)
    return [
        _count("optimal", _optimal(done), 68 / 72, len(cells)),
        _all_within(done, 0.001),
        (f"{late} cells over their time (10 s on 8 ranks, 30 s on more)", late == 0),
    ]


def _below(cells: Mapping[str, Cell]) -> list[Check]:
    return [_median(_done(cells), 0.02), _all_within(_done(cells), 0.05)]


def _unequal(cells: Mapping[str, Cell]) -> list[Check]:
    done = _done(cells)
    high = float(np.percentile([c["gap"] for c in done], 95))
    text = f"95th percentile of the gap {_percent(high)}, target 1 %"
    return [_median(done, 0.002), (text, high < 0.01)]


def _small(cells: Mapping[str, Cell]) -> list[Check]:
    """Both backends prove the optimum of each instance, and it is the same one."""
    done = _done(cells)
    costs: dict[str, list[float]] = {}
    for name, cell in cells.items():
        if cell.get("status") == "optimal":
            costs.setdefault(name.split(":")[0], []).append(cell["cost"])
    apart = sum(max(found) > min(found) * (1 + 1e-6) for found in costs.values())
    late = sum(c["seconds"] > 5.5 for c in done)
    return [
        _count("optimal", _optimal(done), 1.0, len(cells)),
        (f"{apart} instances on which the backends disagree", apart == 0),
        (f"{late} cells over 5 s", late == 0),
    ]


def _scale(cells: Mapping[str, Cell]) -> list[Check]:
    done = _done(cells)
    most = max(c["peak_rss"] for c in done) / MIB
    late = sum(c["seconds"] > 66 for c in done)
    return [
        _all_within(done, 0.01),
        (f"peak memory {most:.0f} MiB, target 4 GB", most < 4e9 / MIB),
        (f"{late} cells over 60 s", late == 0),
    ]


def _makespan(cells: Mapping[str, Cell]) -> list[Check]:
    return [_median(_done(cells), 0.01)]


TARGETS: dict[str, Callable[[Mapping[str, Cell]], list[Check]]] = {
    "table5": _table5,
    "below": _below,
    "unequal": _unequal,
    "odd": _below,
    "small": _small,
    "makespan": _makespan,
    "scale": _scale,
}


def checks(set_name: str, cells: Mapping[str, Cell]) -> list[Check]:
    """Each target of the set on these cells; a cell that failed or broke the rules misses them
    all."""
    broken = [name for name, cell in cells.items() if "error" in cell or cell["violations"]]
    found = TARGETS[set_name](cells) if _done(cells) else []
    return found + [(f"{name}: {cells[name].get('error', 'INVALID')}", False) for name in broken]


def _done(cells: Mapping[str, Cell]) -> list[Cell]:
    return [cell for cell in cells.values() if "error" not in cell]


def _optimal(cells: list[Cell]) -> int:
    return sum(cell["status"] == "optimal" for cell in cells)


def _count(what: str, count: int, share: float, of: int) -> Check:
    return f"{count} of {of} {what}, target {share:.1%}", count >= share * of


def _median(cells: list[Cell], target: float) -> Check:
    value = float(np.median([cell["gap"] for cell in cells]))
    return f"median gap {_percent(value)}, target {_percent(target)}", value <= target


def _all_within(cells: list[Cell], target: float) -> Check:
    over = sum(cell["gap"] > target for cell in cells)
    return f"{over} cells with a gap over {_percent(target)}", over == 0


def _percent(share: float) -> str:
    return f"{max(0.0, round(share * 100, 7)):.3g} %"
