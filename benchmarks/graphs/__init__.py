"""A stage run as modules, with products intercepted, and as graphs: F, B, W, BW and memory.

``python -m benchmarks.graphs`` prints the table of ``README.md`` and records it in
``results/graphs.json``; 1 where a target is missed. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from pipeloom.runtime.launch.processes import launch

from ..recording import record
from .measuring import STAGES, measure
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
    options = parser.parse_args(arguments)
    settings = (options.stages, options.rounds, options.device)
    (rows,) = launch(measure, 1, settings, timeout=7200).values()
    print("\n".join(table(rows)))
    targets = judged(rows)
    print("\n".join(f"{'met' if met else 'MISSED':6} {target}" for target, met in targets.items()))
    result = {"torch": torch.__version__, "rounds": options.rounds, "device": options.device}
    path = record(HERE, "graphs", {**result, "rows": rows, "targets": targets})
    print(f"recorded in {path.name}")
    return 0 if all(targets.values()) else 1
