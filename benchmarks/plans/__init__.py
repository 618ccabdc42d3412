"""Plans beside published configurations: none of these is better, by ``predict``'s own model.

``python -m benchmarks.plans`` plans Llama-3 8B, 70B, 405B and Mixtral on 8 to 1,024 H100s and each
published case of large runs (``benchmarks/predict/published.json``: model, GPU, GPUs, batch and
sequence), each with as much work, and records how far each plan can be from the best one; 1 where a
published configuration beats the plan, a gap is above 5 % or a schedule is not valid.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.recording import record

from .study import GRID, missed, of_grid, of_published, published_cases, table

WORK = 2000.0
"""Millions of simulated ops of each plan."""
PARTS = ("grid", "published")


def main(arguments: list[str]) -> int:
    """Runs the study, prints its tables and records them, each case as soon as it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--work-limit", type=float, default=WORK, help="millions of simulated ops")
    parser.add_argument("--part", choices=PARTS, help="this one alone")
    parser.add_argument("--only", help="cases whose name has this, which are not recorded")
    args = parser.parse_args(arguments)
    lines = list[str]()
    for part in [args.part] if args.part else PARTS:
        found = list[dict[str, Any]]()
        for name, study in _studies(part):
            if (args.only or "") in name:
                found.append(study(args.work_limit))
                print(table(found[-1:]), flush=True)
                if args.only is None:
                    record(Path(__file__).parent, part, {"work": args.work_limit, "cases": found})
        print(table(found))
        lines += missed(found)
    print("\n".join(lines))
    return 1 if lines else 0


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
