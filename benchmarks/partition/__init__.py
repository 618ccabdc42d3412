"""Cut and schedule together, against a balanced and an even cut that are scheduled afterwards.

``python -m benchmarks.partition`` plans 36 seeded models with a heavy embedding and head in the
three ways, as long for each (15 minutes at most), prints the table of ``README.md`` and records it
in ``results/partition.json``. 1 where the joint way is strictly better than both others on fewer
than 20.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from time import monotonic

from ..recording import record
from ..spreading import add_workers, spread
from .instances import SEEDS
from .study import better, searched
from .table import summary, table

SECONDS = 5.5
ENOUGH = 20


def main(arguments: list[str]) -> int:
    """Runs all seeds, prints the table and records it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partition", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each way of each model")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many, from 0")
    add_workers(parser)
    asked = parser.parse_args(arguments)
    began, cells = monotonic(), []
    search = partial(searched, seconds=asked.seconds)
    for _, cell in spread(asked, search, range(asked.seeds)):
        cells.append(cell)
        print(table(cells[-1:])[-1], flush=True)
    took = round(monotonic() - began)
    words = summary(cells)
    settings = {"seconds_a_way": asked.seconds, "took_seconds": took, "summary": words}
    path = record(Path(__file__).parent, "partition", {**settings, "cells": cells})
    print("\n".join(["", *table(cells), "", *words, f"recorded in {path.name} after {took} s"]))
    return 0 if sum(map(better, cells)) >= min(ENOUGH, asked.seeds) else 1
