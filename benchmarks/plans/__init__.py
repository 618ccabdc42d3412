"""Plans beside published configurations: none of these is better, by ``predict``'s own model.

``python -m benchmarks.plans`` (half an hour) plans each published case of large runs
(``benchmarks/predict/published.json``: model, GPU, GPUs, batch and sequence) and Llama-3 8B, 70B,
405B and Mixtral on 8 to 1,024 H100s, and records how far each plan can be from the best one; 1
where a published configuration beats the plan, a gap is above 5 % or a schedule is not valid.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.recording import record

from .study import GRID, missed, of_grid, of_published, published_cases, table

SECONDS = 45.0


def main(arguments: list[str]) -> int:
    """Runs the study, prints its table and records it."""
    from pipeloom.planner.prediction.measured_rows import read_rows

    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=SECONDS, help="seconds of each plan")
    parser.add_argument("--only", help="cases whose name has this, which are not recorded")
    args = parser.parse_args(arguments)
    rows = read_rows(Path(__file__).parents[1] / "predict" / "published.json")
    found = []
    for name, mine in published_cases(rows).items():
        if (args.only or "") in name:
            found.append(of_published(name, mine, args.time_limit))
            print(table(found[-1:]), flush=True)
    for name, given in GRID.items():
        if (args.only or "") in name:
            found.append(of_grid(name, given, args.time_limit))
            print(table(found[-1:]), flush=True)
    print(table(found))
    if args.only is None:
        record(Path(__file__).parent, "plans", {"seconds": args.time_limit, "cases": found})
    lines = missed(found)
    print("\n".join(lines))
    return 1 if lines else 0
