"""Plans beside published configurations: none of these is better, by ``predict``'s own model.

``python -m benchmarks.plans`` plans Llama-3 8B, 70B, 405B and Mixtral on 8 to 1,024 H100s and each
published case of large runs (``benchmarks/predict/published.json``: model, GPU, GPUs, batch and
sequence), each with as much work, and records how far each plan can be from the best one; 1 where a
published configuration beats the plan, a gap is above 5 % or a schedule is not valid.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.recording import record

from .study import GRID, missed, of_grid, of_published, published_cases, table

WORK = 300.0
"""Millions of simulated ops of each plan."""


def main(arguments: list[str]) -> int:
    """Runs the study, prints its table and records it, each case as soon as it is done."""
    from pipeloom.planner.prediction.measured_rows import read_rows

    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--work-limit", type=float, default=WORK, help="millions of simulated ops")
    parser.add_argument("--only", help="cases whose name has this, which are not recorded")
    args = parser.parse_args(arguments)
    rows = read_rows(Path(__file__).parents[1] / "predict" / "published.json")
    studies = {name: partial(of_grid, name, given) for name, given in GRID.items()}
    for name, mine in published_cases(rows).items():
        studies[name] = partial(of_published, name, mine)
    found = list[dict[str, Any]]()
    for name, study in studies.items():
        if (args.only or "") in name:
            found.append(study(args.work_limit))
            print(table(found[-1:]), flush=True)
            if args.only is None:
                record(Path(__file__).parent, "plans", {"work": args.work_limit, "cases": found})
    print(table(found))
    lines = missed(found)
    print("\n".join(lines))
    return 1 if lines else 0
