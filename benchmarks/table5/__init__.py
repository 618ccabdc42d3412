"""Table 5 of the Zero Bubble paper: published and own bubble rates side by side."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from ..recording import record
from ..spreading import add_workers, spread
from .compare import compare
from .rows import load_rows
from .table import render

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Computes, prints and records the table; 1 where a figure is worse than the published one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table5", description=__doc__)
    parser.add_argument(
        "--time-limit", type=float, default=60.0, help="seconds for each zb-1p and zb-2p solve"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--row", help="one row alone, such as 6.2B-24; nothing is recorded then")
    add_workers(parser)
    options = parser.parse_args(arguments)
    rows = [row for row in load_rows() if options.row in (None, str(row))]
    if not rows:
        parser.error(f"--row: expected one of {', '.join(map(str, load_rows()))}")
    results = []
    solve = partial(compare, time_limit=options.time_limit, seed=options.seed)
    for _, result in spread(options, solve, rows):
        results.append(result)
        print(render(results[-1:], heading=len(results) == 1), flush=True)
    if options.row is None:
        settings = {"time_limit": options.time_limit, "seed": options.seed}
        print(f"recorded in {record(HERE, 'table5', {**settings, 'rows': results})}")
    return 1 if any(cell["worse"] for row in results for cell in row["cells"].values()) else 0
