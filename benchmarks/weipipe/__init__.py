"""The bubbles of the weight-passing families, built, beside their formulas for equal times."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..recording import record
from .bubbles import measure
from .table import render

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Builds, prints and records the table; 1 where equal times do not give the formula."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weipipe", description=__doc__)
    parser.parse_args(arguments)
    rows = measure()
    print(render(rows))
    print(f"recorded in {record(HERE, 'weipipe', {'rows': rows})}")
    wrong = [row for row in rows if row["equal"] and not row["as_formula"]]
    return 1 if wrong else 0
