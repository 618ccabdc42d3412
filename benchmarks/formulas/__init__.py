"""Published bubble and memory formulas beside what the built schedules come to."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .study import METHODS, cells
from .table import differences, table

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Builds, prints and records; 1 where a formula whose condition holds is not reproduced."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.formulas", description=__doc__)
    parser.parse_args(arguments)
    found = cells()
    print("\n".join(table(found)), end="\n\n")
    print("\n".join(differences(found)), end="\n\n")
    rows = [cell.row() for cell in found]
    print(f"recorded in {record(HERE, 'formulas', {'cells': rows})}")
    return 1 if any(cell.holds and not cell.equal for cell in found) else 0


__all__ = ["METHODS", "main"]
