"""Levels of recomputation: four models at four memory limits, with and without them.

``python -m benchmarks.levels`` prints the table of ``README.md`` and records it in
``results/levels.json``; 1 where levels are worse than none, all or any one of them, or better in
less than half of the cells.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .front import MODELS
from .study import LIMITS, MICROBATCHES, WORK, cell, failures, table


def main(arguments: list[str]) -> int:
    """Runs the study, prints its table and records it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.levels", description=__doc__)
    parser.parse_args(arguments)
    cells = []
    for model in MODELS:
        for share in LIMITS:
            cells.append(cell(model, share))
            print(table(cells)[-1], flush=True)
    settings = {"microbatches": MICROBATCHES, "work_limit": WORK}
    path = record(Path(__file__).parent, "levels", {**settings, "cells": cells})
    wrong = list(failures(cells))
    print("\n".join(["", *table(cells), "", *wrong, f"recorded in {path.name}"]))
    return 1 if wrong else 0
