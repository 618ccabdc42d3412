"""Table 8 of the Zero Bubble paper, two chunks a rank: published and own bubble rates side by
side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.verify.schedule import verify_schedule

from ..recording import record
from ..table5.table import render
from .optimized import at_the_table, cut_lines, failures, lines, other_cuts, sweep
from .rows import Row, load_rows

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Builds, prints and records the table; 1 where a figure is not the published one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table8", description=__doc__)
    parser.add_argument(
        "--optimized",
        metavar="SECONDS",
        type=float,
        help="instead: what the optimizer finds in so many seconds at each row's memory, and at "
        "less "
        "and more for the first row",
    )
    parser.add_argument(
        "--cuts",
        metavar="WORK",
        type=float,
        help="instead: the first row's model interleaved and in waves, with so many million "
        "simulated "
        "ops a thread for each memory limit",
    )
    asked = parser.parse_args(arguments)
    if asked.optimized is not None:
        return _optimize(asked.optimized)
    if asked.cuts is not None:
        return _cut(asked.cuts)
    results = [_compare(row) for row in load_rows()]
    print(render(results))
    print(f"recorded in {record(HERE, 'table8', {'rows': results})}")
    return 1 if any(cell["differs"] for row in results for cell in row["cells"].values()) else 0


def _optimize(seconds: float) -> int:
    rows = load_rows()
    cells: dict[str, list[dict[str, Any]]] = {"rows": [], "sweep": []}
    for row in rows:
        cells["rows"].append(at_the_table(row, seconds))
        print(lines(cells["rows"][-1:]).splitlines()[-1], flush=True)
    for cell in sweep(rows[0], seconds):
        cells["sweep"].append(cell)
        print(lines([cell]).splitlines()[-1], flush=True)
    wrong = failures(cells["rows"] + cells["sweep"])
    print(*(f"not met: {line}" for line in wrong), sep="\n")
    print(f"recorded in {record(HERE, 'optimized', cells)}")
    return 1 if wrong else 0


def _cut(work: float) -> int:
    cells = list(other_cuts(load_rows()[0], work))
    print(cut_lines(cells))
    print(f"recorded in {record(HERE, 'cuts', {'work': work, 'cells': cells})}")
    return 1 if any(cell["violations"] for cell in cells) else 0


def _compare(row: Row) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for family, published in row.published.items():
        faults = verify_schedule(dump_schedule(row.schedule(family)))
        for name, own in row.rates(family).items():
            stricter = name.endswith("every boundary")  # the contract's rule, not the published one
            differs = bool(faults) or (not stricter and round(own, 4) != published)
            cells[name] = {"published": published, "own": own, "differs": differs}
    return {
        "model": row.model,
        "ranks": row.ranks,
        "microbatches": row.microbatches,
        "cells": cells,
    }
