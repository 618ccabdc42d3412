"""Weak and strong scaling: the best plans on 8 to 4096 GPUs, WeiPipe's figures, 1F1B by degree."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pipeloom.planner.scaling import scaling
from pipeloom.report.text_table import table

from ..recording import record
from ..spreading import add_workers
from .curves import Curve, degree_curve, faults, scaling_curves

HERE = Path(__file__).parent
MODEL, GPU, SEQUENCE = "llama-3-8b", "H100", 8192
GPUS = [2**power for power in range(3, 13)]
BATCHES = {"weak": 16, "strong": 1024}
"""Sequences of a step: in weak scaling those of the fewest GPUs."""
WORK = 100.0
"""Millions of simulated ops of each plan."""


def main(arguments: list[str]) -> int:
    """Computes, prints and records; 1 where a curve has not the published shape, or nothing was
    planned."""
    options = _options(arguments)
    curves, degrees = list(scaling_curves()), degree_curve()
    print("\n".join(_words(curves, degrees)), flush=True)
    wrong = list(faults(curves, degrees))
    print(f"recorded in {record(HERE, 'curves', {'scaling': curves, 'degrees': degrees})}")
    if not options.curves:
        wrong += _plans(options)
    print("\n".join(f"WRONG {line}" for line in wrong) or "all have the published shape")
    return int(bool(wrong))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--curves", action="store_true", help="the curves alone, without plans")
    parser.add_argument("--work-limit", type=float, default=WORK, help="millions of simulated ops")
    add_workers(parser)
    return parser.parse_args(arguments)


def _plans(options: argparse.Namespace) -> list[str]:
    """Records table and picture of each scaling; a line for each number of GPUs without a plan."""
    missing, known = list[str](), dict[str, Any]()
    for kind, batch in BATCHES.items():
        found = scaling(
            MODEL,
            gpu=GPU,
            gpus=GPUS,
            global_batch=batch,
            seq=SEQUENCE,
            scaling=kind,
            work_limit=options.work_limit,
            workers=options.workers,
            scheduler=options.scheduler,
        )
        print(found, flush=True)
        known[kind] = found.to_dict()
        (HERE / "results" / f"{kind}.svg").write_text(found.picture(), encoding="utf-8")
        missing += [f"{kind}, {p.gpus}: {p.why_not}" for p in found.points if p.plan is None]
    settings = {"work": options.work_limit, "seq": SEQUENCE}
    print(f"recorded in {record(HERE, 'plans', settings | known)}")
    return missing


def _words(curves: list[Curve], degrees: list[dict[str, float]]) -> list[str]:
    """Tokens a second and GPU."""
    words = list[str]()
    for setup, kind in dict.fromkeys((c["setup"], c["scaling"]) for c in curves):
        own = [c for c in curves if (c["setup"], c["scaling"]) == (setup, kind)]
        gpus = list(own[0]["tokens"])
        rows = [[c["scheme"], *(_cell(c["tokens"][n]) for n in gpus)] for c in own]
        words += [f"{setup}, {kind}", table(["scheme", *map(str, gpus)], rows), ""]
    rows = [
        [f"{row['stages']:g}", f"{row['tokens']:.0f}", f"{row['equal_stages']:.0f}"]
        for row in degrees
    ]
    return [*words, f"1F1B, {MODEL}", table(["stages", "tokens/s/GPU", "equal stages"], rows)]


def _cell(tokens: float | None) -> str:
    return "OOM" if tokens is None else f"{tokens:.0f}"
