"""A stage run as modules, with products intercepted, and as graphs: F, B, W, BW and memory; and
whole steps.

``python -m benchmarks.graphs`` prints the table of ``README.md`` and records it in
``results/graphs.json``; 1 where a target is missed. Run it on an idle machine.
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
    parser.add_argument("--rounds", type=int, default=60, help="of which medians are taken")
    parser.add_argument(
        "--stages", nargs="*", choices=[*STAGES], default=[*STAGES], help="all by default"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--ranks",
        nargs="*",
        type=int,
        choices=sorted({case.ranks for case in CASES}),
        default=sorted({case.ranks for case in CASES}),
        help="of whole steps, which run on CPUs; all by default",
    )
    parser.add_argument("--steps", type=int, default=10, help="of which medians are taken")
    options = parser.parse_args(arguments)
    settings = (options.stages, options.rounds, options.device)
    (rows,) = launch(measure, 1, settings, timeout=7200).values()
    print("\n".join(table(rows)))
    steps = [_steps(case, options.steps) for case in CASES if case.ranks in options.ranks]
    print("\n".join(steps_table(steps)))
    targets = {**judged(rows), **judged_steps(steps)}
    print("\n".join(f"{'met' if met else 'MISSED':6} {target}" for target, met in targets.items()))
    result = {"torch": torch.__version__, "rounds": options.rounds, "device": options.device}
    path = record(HERE, "graphs", {**result, "rows": rows, "zb_h1": steps, "targets": targets})
    print(f"recorded in {path.name}")
    return 0 if all(targets.values()) else 1


def _steps(case: Case, steps: int) -> dict[str, Any]:
    """The row of a case, in processes of its own: what torch.compile makes is kept by shapes."""
    return summary(case, launch(measure_steps, case.ranks, (case, steps), timeout=3600))
