"""Packing: 20 batches, against sorting by length, first fit by tokens and dynamic programming.

``python -m benchmarks.packing`` prints the table of ``README.md`` and records it in
``results/packing.json``; 1 where a packing costs more than another's, or a bound more than
any. Work in place of the clock decides, so that a busy machine comes to the same answers.
``--seed N`` draws other batches, which are not recorded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .study import BATCHES, SEED, WORK, failures, row, summary, table


def main(arguments: list[str]) -> int:
    """Runs the study, prints its table and records it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.add_argument("--batches", type=int, default=BATCHES, help="only so many of them")
    parser.add_argument("--seed", type=int, default=SEED, help="of the batches")
    options = parser.parse_args(arguments)
    rows = []
    for number in range(options.batches):
        rows.append(row(number, options.seed))
        print(table(rows)[-1], flush=True)
    if (options.batches, options.seed) == (BATCHES, SEED):
        record(Path(__file__).parent, "packing", {"work_limit": WORK, "batches": rows})
    wrong = failures(rows)
    print("\n".join(["", *table(rows), "", summary(rows), *wrong]))
    return 1 if wrong else 0
