"""Measures a model's stages and the links between ranks into a profile.

All ranks compute at the same time while they are measured, as they do in a pipeline.
--model names a model source, as in examples.gpt:small, which is in the checkout; its module is
looked for in the current folder too.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pipeloom.report.text_table import table

from ..arguments import add_output, count, example, limit, seconds, whole
from ..inputs import options, typed
from ..model_arguments import add_model, need_torch
from ..output import check_output, finish

if TYPE_CHECKING:
    from pipeloom.runtime.profiling.profiler import Measurement

KEYS = (
    "stages", "ranks", "repeats", "warmup", "alone", "recompute", "pairs", "offload", "local",
    "name", "memory_limit", "timeout", "dtype", "device",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    pieces = parser.add_mutually_exclusive_group(required=True)
    pieces.add_argument("--stages", metavar="S", type=count, help="pieces of the model")
    pieces.add_argument(
        "--layers",
        action="store_true",
        help="each layer of a model that names them, for optimize to cut; needs --ranks",
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
        help="measure as well how long a forward takes again, and what is held until then (t_r, "
        "m_r)",
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="measure as well an F and a BW at once, as the runtime runs them (t_fb)",
    )
    parser.add_argument(
        "--offload",
        action="store_true",
        help="measure as well what goes to the host and the way there (m_o, offload_bytes, "
        "host_link)",
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
        "pipeloom profile --model examples.gpt:small --stages 4 --ranks 2 --repeats 20 -o p.json",
        "pipeloom profile --model examples.gpt:small --layers --ranks 2 -o layers.json",
    )


def run(args: argparse.Namespace) -> int:
    need_torch()
    check_output(args)
    from pipeloom.training import measure

    with typed("ranks"):
        measurement = measure(args.model, **options(args, *KEYS))
    if os.environ.get("RANK", "0") == "0":  # under torchrun rank 0 alone speaks
        answer = {"measured": measurement.record()}
        finish(args, measurement.document(), answer, _words(measurement))
    return 0


def _words(measurement: Measurement) -> str:
    """A row a stage, each time with the spread of its middle half; then messages and copies."""
    from pipeloom.ir.units import amount, duration

    profile = measurement.profile
    columns = {
        f"T_{kind.name}": [each[kind] for each in measurement.times]
        for kind in measurement.times[0]
    }
    if measurement.pairs:
        columns["T_FB"] = list(measurement.pairs)
    sizes = {"M_B": "m_b", "M_W": "m_w", "M_R": "m_r", "M_O": "m_o", "moved": "offload_bytes"}
    known = {
        words: key for words, key in sizes.items() if getattr(profile.stages[0], key) is not None
    }
    rows = [
        [
            stage.layers[0].name if stage.layers else f"stage {s}",
            *(
                f"{duration(figures[s].median)} +-{figures[s].spread / 2:.0%}"
                for figures in columns.values()
            ),
            *(amount(getattr(stage, key)) for key in known.values()),
        ]
        for s, stage in enumerate(profile.stages)
    ]
    lines = [table(["", *columns, *known], rows)]
    if measurement.delay is not None:
        lines.append(f"t_comm {duration(measurement.delay.median)}")
    links = {
        "links": None if profile.links is None else profile.links.default,
        "host link": profile.host_link,
    }
    for name, link in links.items():
        if link is not None:
            rate = f"{link.gigabytes_per_second:.3g} GB/s"
            lines.append(f"{name} {rate}, latency {duration(link.latency)}")
    return "\n".join(lines)
