"""Random instances of every shape: valid, never below a bound, and no crash.

Up to 8 ranks and 12 microbatches, with times, delays, memory and limits of all magnitudes. Checked
are what ``optimize`` and every family find, refusals of limits that are too small, the oracle's
optimum of tiny instances, and that nothing warns. The recorded gaps are those of hardly any work.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from tests.support.recorded import record
from tests.support.spreading import add_workers, spread

from .checks import Outcome, check
from .instances import Instance, random_instance

HERE = Path(__file__).parent
COUNT = 5000
WORK_LIMIT = 3.0
"""Millions of simulated ops, some hundredths of a second."""
DEEP, DEEP_EVERY = 20.0, 9
"""So many times as much on every so many-th seed: enough for every part of the portfolio."""
EVERY_SECONDS = 30.0
WIDEST = 10


def main(arguments: list[str]) -> int:
    """Checks, prints and records; 1 where anything is wrong."""
    options = _options(arguments)
    began = perf_counter()
    seeds = range(options.first, options.first + options.count)
    found = list(_checked(seeds, options, began))
    result = summary(found) | {
        "first_seed": options.first,
        "work_limit": options.work_limit,
        "seconds": perf_counter() - began,
    }
    print("\n".join(f"{key}: {value}" for key, value in result.items() if key != "faults"))
    if options.count >= COUNT:
        print(f"recorded in {record(HERE, result)}")
    return 1 if result["faults"] else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.property.random_instances", description=__doc__
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--count", type=int, default=COUNT, help="seeds; a run of fewer is not recorded"
    )
    parser.add_argument(
        "--work-limit", type=float, default=WORK_LIMIT, help="millions of simulated ops a solve"
    )
    add_workers(parser)
    return parser.parse_args(arguments)


def _checked(
    seeds: range, options: argparse.Namespace, began: float
) -> Iterator[tuple[Instance, Outcome]]:
    """Prints what is wrong at once, and now and then how far it is."""
    told = began
    for seed, outcome in spread(options, partial(_outcome, options.work_limit), seeds):
        instance = random_instance(seed)
        for fault in outcome.faults:
            print(f"{instance}: {fault}", flush=True)
        if perf_counter() - told > EVERY_SECONDS:
            told = perf_counter()
            print(f"{seed - seeds.start + 1} of {len(seeds)}, {told - began:.0f} s", flush=True)
        yield instance, outcome


def _outcome(work_limit: float, seed: int) -> Outcome:
    return check(random_instance(seed), work_of(seed, work_limit))


def work_of(seed: int, work_limit: float) -> float:
    """The work limit of each solve of a seed's instance, in millions of simulated ops."""
    return work_limit * (1.0 if seed % DEEP_EVERY else DEEP)


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
        "faults": [f"{i}: {fault}" for i, outcome in found for fault in outcome.faults],
    }
