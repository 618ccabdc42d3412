"""Measures a model's stages and the links between ranks into a profile.

All ranks compute at the same time while they are measured, as they do in a pipeline.
--model names a model source, as in examples.gpt:small, which is in the checkout; its module is
looked for in the current folder too.
"""

from __future__ import annotations

import argparse
import math
import os
from typing import TYPE_CHECKING

from .arguments import add_output, count, example, limit, seconds, whole
from .models import add_model, need_torch
from .output import check_output, finish, table

if TYPE_CHECKING:
    from pipeloom.runtime.profiler import Measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--stages", metavar="S", type=count, required=True, help="pieces of the model"
    )
    parser.add_argument(
        "--ranks", metavar="P", type=count, help="processes, as many as stages by default"
    )
    parser.add_argument(
        "--repeats", metavar="N", type=count, default=10, help="rounds that count, 10 by default"
    )
    parser.add_argument(
        "--warmup", metavar="N", type=whole, default=2, help="rounds before those, 2 by default"
    )
    parser.add_argument(
        "--alone", action="store_true", help="one process, a stage after the other, and no links"
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="measure as well how long a forward takes again, and what is held until then (t_r, m_r)",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="ranks are threads of this process, as under run --local: on one GPU, too",
    )
    parser.add_argument("--name", default="", help="the profile's name")
    parser.add_argument(
        "--memory-limit", metavar="X", type=limit, help="bytes of activations a rank, to go with it"
    )
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, default=300.0, help="for any one message, 300 s"
    )
    add_output(parser, "profile")
    example(
        parser,
        "pipeloom profile --model examples.gpt:small --stages 4 -o profile.json",
        "pipeloom profile --model examples.gpt:small --stages 8 --ranks 4 --repeats 20 -o p.json",
    )


def run(args: argparse.Namespace) -> int:
    need_torch()
    check_output(args)
    from pipeloom.ir.files import dump_profile
    from pipeloom.runtime.model import load_source
    from pipeloom.runtime.profiler import measure_profile
    from pipeloom.runtime.train import DTYPES

    measurement = measure_profile(
        load_source(args.model),
        stages=args.stages,
        ranks=args.ranks or args.stages,
        repeats=args.repeats,
        warmup=args.warmup,
        dtype=DTYPES[args.dtype] if args.dtype else None,
        device=args.device,
        together=not args.alone,
        name=args.name or args.model,
        timeout=args.timeout,
        recompute=args.recompute,
        local=args.local,
    )
    if os.environ.get("RANK", "0") != "0":  # under torchrun rank 0 alone speaks
        return 0
    document = dump_profile(measurement.profile)
    if args.memory_limit is not None and math.isfinite(args.memory_limit):
        document["memory_limit"] = args.memory_limit
    finish(args, document, {"measured": measurement.record()}, _words(measurement))
    return 0


def _words(measurement: Measurement) -> str:
    """A row a stage, each time with the spread of its middle half."""
    from pipeloom.ir.amounts import amount
    from pipeloom.report.words import duration

    rows = [
        [
            f"stage {s}",
            *(
                f"{duration(figure.median)} +-{figure.spread / 2:.0%}"
                for figure in figures.values()
            ),
            amount(stage.m_b),
            amount(stage.m_w),
        ]
        for s, (stage, figures) in enumerate(
            zip(measurement.profile.stages, measurement.times, strict=True)
        )
    ]
    delay = "" if measurement.delay is None else f"\nt_comm {duration(measurement.delay.median)}"
    times = [f"T_{kind.name}" for kind in measurement.times[0]]
    return table(["", *times, "M_B", "M_W"], rows) + delay
