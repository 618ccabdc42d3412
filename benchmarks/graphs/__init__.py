"""A stage run as modules, with products intercepted, and as graphs: F, B, W, BW and memory; and
whole steps.

``python -m benchmarks.graphs`` prints the tables of ``README.md`` and records them in
``results/stages.json`` and ``results/steps.json``; 1 where a target is missed. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from pipeloom.runtime.launch.processes import launch

from ..recording import record
from .measuring import STAGES, measure
from .steps import CASES, Case, measure_steps, summary
from .steps import judged as judged_steps
from .steps import table as steps_table
from .table import judged, table

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Measures in a process of its own, prints and records; 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graphs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="of which medians are taken")
    parser.add_argument(
        "--stages",
        nargs="*",
        choices=[*STAGES],
        default=[*STAGES],
        help="all by default; without a name none",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--ranks",
        nargs="*",
        type=int,
        choices=sorted({case.ranks for case in CASES}),
        default=sorted({case.ranks for case in CASES}),
        help="of whole steps, which run on CPUs; all by default, without a number none",
    )
    parser.add_argument("--steps", type=int, default=10, help="of which medians are taken")
    options = parser.parse_args(arguments)
    met = True
    if options.stages:
        settings = (options.stages, options.rounds, options.device)
        (rows,) = launch(measure, 1, settings, timeout=7200).values()
        how = {"rounds": options.rounds, "device": options.device}
        met = _told("stages", how, rows, table(rows), judged(rows))
    if options.ranks:
        rows = [_steps(case, options.steps) for case in CASES if case.ranks in options.ranks]
        how = {"steps": options.steps}
        met &= _told("steps", how, rows, steps_table(rows), judged_steps(rows))
    return 0 if met else 1


def _told(
    name: str,
    how: dict[str, Any],
    rows: list[dict[str, Any]],
    lines: list[str],
    targets: dict[str, bool],
) -> bool:
    """Prints and records a table; whether all its targets are met."""
    print("\n".join(lines))
    print("\n".join(f"{'met' if met else 'MISSED':6} {target}" for target, met in targets.items()))
    result = {"torch": torch.__version__, **how, "rows": rows, "targets": targets}
    print(f"recorded in {record(HERE, name, result).name}")
    return all(targets.values())


def _steps(case: Case, steps: int) -> dict[str, Any]:
    """The row of a case, in processes of its own: what torch.compile makes is kept by shapes."""
    return summary(case, launch(measure_steps, case.ranks, (case, steps), timeout=3600))
