"""Recomputation and offload at eight memory limits: the example profile with and without them.

``python -m benchmarks.remat`` prints the table of ``README.md`` and records it in
``results/remat.json``; 1 where a schedule with them is worse than without, or than with less
memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .study import LIMITS, MICROBATCHES, WORK, cell, table, worse


def main(arguments: list[str]) -> int:
    """Runs the study, prints its table and records it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remat", description=__doc__)
    parser.parse_args(arguments)
    cells = []
    for limit in LIMITS:
        cells.append(cell(limit))
        print(table(cells)[-1], flush=True)
    settings = {"microbatches": MICROBATCHES, "work_limit": WORK}
    path = record(Path(__file__).parent, "remat", {**settings, "cells": cells})
    print("\n".join(["", *table(cells), "", *worse(cells), f"recorded in {path.name}"]))
    return 1 if worse(cells) else 0
