"""One part in a process of its own: ``python -m benchmarks.one_gpu.part NAME --to FILE``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import checks
from .pipelines import measure_ranks
from .sizes import FULL, SMALL, Size
from .telling import Tell, guarded, telling


def run(name: str, size: Size, device: str, tell: Tell) -> None:
    """``name``: environment, gradients, split or ranks-P. Errors are told, not raised."""
    kind, _, ranks = name.partition("-")
    size = replace(size, model=replace(size.model, home=device))
    parts = {
        "environment": checks.environment,
        "gradients": checks.gradients,
        "split": checks.split,
    }
    with guarded(tell, "part"):
        call = partial(measure_ranks, size, int(ranks)) if ranks else partial(parts[kind], size)
        call(device, tell)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    run(options.name, SMALL if options.small else FULL, options.device, telling(options.to))


if __name__ == "__main__":
    main()
