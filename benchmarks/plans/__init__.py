"""Plans beside published configurations: none of these is better, by ``predict``'s own model.

``python -m benchmarks.plans`` plans Llama-3 8B, 70B, 405B and Mixtral on 8 to 1,024 H100s and each
published case of large runs (``benchmarks/predict/published.json``: model, GPU, GPUs, batch and
sequence), each with as little work as it needs, and records how far each plan can be from the best
one; 1 where a published configuration beats the plan, a gap is above 5 % or a schedule is not
valid.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.recording import record, recorded

from .study import GRID, missed, of_grid, of_published, published_cases, table

FIRST, MOST = 100.0, 1600.0
"""Millions of simulated ops of a plan; four times as many where these miss, but not more."""
PARTS = ("grid", "published")


def main(arguments: list[str]) -> int:
    """Runs the study, prints its tables and records them, each case as soon as it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--work-limit", type=float, default=MOST, help="millions of simulated ops")
    parser.add_argument("--part", choices=PARTS, help="this one alone")
    parser.add_argument("--only", help="cases whose name has this, which are not recorded")
    parser.add_argument(
        "--resume", action="store_true", help="keep what is recorded and misses nothing, add to it"
    )
    args = parser.parse_args(arguments)
    lines = list[str]()
    for part in [args.part] if args.part else PARTS:
        found = _run(part, args)
        print(table(found))
        lines += missed(found)
    print("\n".join(lines))
    return 1 if lines else 0


def _run(part: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The cases of a part."""
    studies = dict(_studies(part))
    known = _recorded(part) if args.resume else {}
    asked = [name for name in studies if (args.only or "") in name]
    for name in [name for name in asked if name not in known or missed([known[name]])]:
        known[name] = _of_least_work(studies[name], args.work_limit)
        print(table([known[name]]), flush=True)
        if args.resume or args.only is None:
            cases = [known[each] for each in studies if each in known]
            record(Path(__file__).parent, part, {"cases": cases})
    return [known[name] for name in asked if name in known]


def _of_least_work(study: Callable[[float], dict[str, Any]], most: float) -> dict[str, Any]:
    """The case with as little work as its plan needs to miss nothing."""
    work = min(FIRST, most)
    while missed([found := study(work)]) and work < most:
        work = min(4 * work, most)
    return found | {"work": work}


def _recorded(part: str) -> dict[str, dict[str, Any]]:
    """The cases that are recorded, by name."""
    cases = recorded(Path(__file__).parent, part).get("cases", [])
    return {case["name"]: case for case in cases}


def _studies(part: str) -> Iterator[tuple[str, Callable[[float], dict[str, Any]]]]:
    """Cases by name, of which each is given its work."""
    if part == "grid":
        for name, given in GRID.items():
            yield name, partial(of_grid, name, given)
        return
    from pipeloom.planner.prediction.measured_rows import read_rows

    rows = read_rows(Path(__file__).parents[1] / "predict" / "published.json")
    for name, mine in published_cases(rows).items():
        yield name, partial(of_published, name, mine)
