"""A training script of torch.distributed.pipelining and its port, side by side in one run."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pipeloom.runtime.launch.processes import launch

from ..recording import record
from .compare import MOST_CHANGED, Row, changed_lines, measure, render, rows_of
from .plans import FAMILIES, RANKS, write_plans

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Measures, prints and records; 1 where losses differ or more lines changed than promised."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.port", description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="of which the median counts")
    options = parser.parse_args(arguments)
    changed, rows = changed_lines(), compared(list(FAMILIES), options.steps)
    print(f"{changed} lines changed (at most {MOST_CHANGED})\n\n{render(rows)}", end="")
    result = {"torch": torch.__version__, "steps": options.steps, "changed_lines": changed}
    print(f"recorded in {record(HERE, 'port', result | {'schedules': rows})}")
    return 0 if changed <= MOST_CHANGED and all(row["losses_equal"] for row in rows) else 1


def compared(names: list[str], steps: int) -> list[Row]:
    """A row for each of torch's schedules."""
    with TemporaryDirectory() as folder:
        write_plans(Path(folder))
        return rows_of(names, launch(measure, RANKS, (names, steps, folder), timeout=3600))
