"""The cost of our runtime and torch.distributed.pipelining on the same stages and schedules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from pipeloom.runtime.launch.processes import launch

from ..recording import record
from .both import RANKS, Case, measure, measure_loop
from .priority import cores_awake
from .split import WIDTHS, measure_split
from .table import (
    AT_MOST,
    judged,
    judged_graphs,
    judged_split,
    loops,
    render_loops,
    render_split,
    render_steps,
    summary,
)

HERE = Path(__file__).parent
LENGTHS = (5.0, 20.0, 0.0)
FAMILIES = ("1f1b", "interleaved-1f1b:2", "zb-h1", "zb-v")


def main(arguments: list[str]) -> int:
    """Measures, prints and records; 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.runtime_overhead", description=__doc__
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=20,
        help="steps, of which the median counts; of the 20 ms stages half as many",
    )
    parser.add_argument("--rounds", type=int, default=30, help="pairs of BW and B + W")
    parser.add_argument(
        "--halt",
        action="store_true",
        help="let cores halt while they are idle, as they do by default",
    )
    parser.add_argument(
        "--stages-as",
        choices=["eager", "aten"],
        default="eager",
        help="our sleeping stages as modules or as graphs; graphs have a record of their own",
    )
    parser.add_argument(
        "--stage-ms",
        nargs="+",
        type=float,
        choices=LENGTHS,
        default=LENGTHS,
        help="lengths of sleeping stages; fewer than all have a record of their own, without B + W",
    )
    options = parser.parse_args(arguments)
    chosen = sorted({*options.stage_ms}, key=LENGTHS.index)
    cases = [Case(f, m, ms) for ms in chosen for f in FAMILIES for m in (16, 32)]
    with cores_awake(not options.halt) as awake:
        settings = (cases, options.steps, options.stages_as)
        steps = summary(cases, launch(measure, RANKS, settings, timeout=3600))
        long = [ms for ms in chosen if ms in AT_MOST]
        plain = loops({ms: launch(measure_loop, RANKS, (ms, 10 * options.steps)) for ms in long})
    split: list[dict[str, Any]] = []
    if len(chosen) == len(LENGTHS):
        (split,) = launch(measure_split, 1, (WIDTHS, options.rounds), timeout=3600).values()
    print(render_steps(steps))
    print(render_loops(plain))
    print(render_split(split))
    graphs = options.stages_as != "eager"
    targets = judged_graphs(steps, plain) if graphs else judged(steps)
    targets |= judged_split(split) if split else {}
    print("\n".join(f"{'met' if met else 'MISSED':6} {target}" for target, met in targets.items()))
    result = {
        "torch": torch.__version__,
        "steps": options.steps,
        "cores_awake": awake,
        "stages_as": options.stages_as,
        "schedules": steps,
        "loops": plain,
        "split": split,
        "targets": targets,
    }
    parts = [options.stages_as] * graphs + [f"{ms:g}ms" for ms in chosen] * (not split)
    name = "_".join(["runtime_overhead", *parts])
    print(f"recorded in {record(HERE, name, result)}")
    return 0 if all(targets.values()) else 1
