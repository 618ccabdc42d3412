"""Study of which scheme wins: clusters with fast and slow links, short and long microbatches.

``python -m benchmarks.hybrids`` chooses on each cluster at each sequence length (some minutes),
prints the table of ``README.md`` and records it in ``results/hybrids.json``. 1 where islands win
nowhere, or where one of the pure schemes does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.recording import record

from .study import MICROBATCHES, SEQUENCES, WORK, cells, table, winners


def main(arguments: list[str]) -> int:
    """Runs the study, prints its table and records it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrids", description=__doc__)
    parser.parse_args(arguments)
    found = []
    for cell in cells():
        print(f"{cell['cluster']}, {cell['sequence']} tokens: {cell['best']}", flush=True)
        found.append(cell)
    settings = {"microbatches": MICROBATCHES, "work_limit": WORK, "sequences": list(SEQUENCES)}
    path = record(Path(__file__).parent, "hybrids", {**settings, "cells": found})
    print("\n".join(["", *table(found), "", f"recorded in {path.name}"]))
    missing = {"activations", "weights", "fsdp", "weights-inside", "activations-inside"} - winners(
        found
    )
    if missing:
        print(f"wins nowhere: {', '.join(sorted(missing))}")
    return 1 if missing else 0
