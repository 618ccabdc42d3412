"""Random instances of every shape: valid, never below a bound, and no crash.

Up to 8 ranks and 12 microbatches, with times, delays, memory and limits of all magnitudes. Checked
are what ``optimize`` and every family find, refusals of limits that are too small, the oracle's
optimum of tiny instances, and that nothing warns. The recorded gaps are those of hardly any work.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.random_checks import RandomCheck

from .checks import Outcome, check
from .instances import Instance, random_instance

COUNT = 5000
WORK_LIMIT = 3.0
"""Millions of simulated ops, some hundredths of a second."""
DEEP, DEEP_EVERY = 20.0, 9
"""So many times as much on every so many-th seed: enough for every part of the portfolio."""
WIDEST = 10


def checked(seed: int, work_limit: float = WORK_LIMIT) -> tuple[Instance, Outcome]:
    """The check of a seed's instance."""
    instance = random_instance(seed)
    return instance, check(instance, work_limit * (1.0 if seed % DEEP_EVERY else DEEP))


def faults(one: tuple[Instance, Outcome]) -> list[str]:
    return [f"{one[0]}: {fault}" for fault in one[1].faults]


def summary(found: list[tuple[Instance, Outcome]]) -> dict[str, Any]:
    """Counts, the widest gaps and every fault."""
    counts = Counter(outcome.status for _, outcome in found)
    gaps = [outcome.gap for _, outcome in found if outcome.status in ("optimal", "feasible")]
    widest = sorted(found, key=lambda pair: -pair[1].gap)[:WIDEST]
    return {
        "instances": len(found),
        **{status: counts[status] for status in ("optimal", "feasible", "infeasible", "crash")},
        "tiny": sum(instance.tiny for instance, _ in found),
        "schedules_verified": sum(outcome.schedules for _, outcome in found),
        "oracle_agreed": sum(o.optimum is not None and not o.faults for _, o in found),
        "median_gap": median(gaps),
        "worst_gap": max(gaps),
        "widest": [f"{o.gap:.3f} over {o.bound_name}: {i}" for i, o in widest if o.gap > 0],
        "faults": [line for one in found for line in faults(one)],
    }


HERE = Path(__file__).parent
main = RandomCheck(__name__, HERE, COUNT, WORK_LIMIT, lambda: 0, checked, faults, summary).main
