"""Measures a model's stages and the links between ranks into a profile.

All ranks compute at the same time while they are measured, as they do in a pipeline.
--model names a model source such as examples.gpt:small, which is in the checkout. Its module can be
in the current folder.

--from makes the profile from ops that were measured elsewhere, and needs no torch. It reads traces
of torch's profiler, of a pipeloom run or of torch.distributed.pipelining (one file per rank, or
their folder), a schedule written by run --trace, a table of timers (CSV), and Primus's traces.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError
from pipeloom.report.text_table import table

from ...arguments import add_output, add_quiet, count, example, limit, number, seconds, whole
from ...inputs import options, typed
from ...model_arguments import add_model, add_stages_as, announce_loading, need_torch
from ...output import check_output, finish
from ...progress import ProgressDisplay

if TYPE_CHECKING:
    from pipeloom.ir.formats.measured_profile import Measurement

KEYS = (
    "stages", "layers", "ranks", "repeats", "warmup", "alone", "recompute", "pairs", "offload",
    "stages_as", "name", "memory_limit", "timeout", "dtype", "device",
    "memory_only", "like",
)  # fmt: skip
FROM_KEYS = ("split", "memory", "t_comm", "like")
"""Options of --from alone."""
SHARED = ("ranks", "warmup", "name", "memory_limit")
"""Options that measuring has as well."""
WARMUP = 2
UNSTEADY = 0.2
"""Half the range of the middle half of a time, relative to it, above which a note is due."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, required=False)
    pieces = parser.add_mutually_exclusive_group()
    pieces.add_argument("--stages", metavar="S", type=count, help="number of stages to measure")
    pieces.add_argument(
        "--layers",
        action="store_true",
        help="measure each layer, so that optimize can cut the model; needs --ranks",
    )
    parser.add_argument(
        "--ranks",
        metavar="P",
        type=count,
        help="number of processes; by default, the number of stages",
    )
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=count,
        default=10,
        help="number of measured rounds, 10 by default",
    )
    parser.add_argument(
        "--warmup",
        metavar="N",
        type=whole,
        help="number of rounds before those, 2 by default; with --from, number of steps to skip, 1 "
        "by default if there are several",
    )
    parser.add_argument(
        "--memory-only",
        action="store_true",
        help="calculate bytes without running a step or allocating the model; each op takes 1 ms, "
        "or as long as in --like",
    )
    parser.add_argument(
        "--alone",
        action="store_true",
        help="measure in one process, one stage after another, without links",
    )
    _add_more(parser)
    add_stages_as(parser)
    parser.add_argument("--name", default="", help="name of the profile")
    parser.add_argument(
        "--memory-limit",
        metavar="X",
        type=limit,
        help="activation memory limit of each rank, to write into the profile",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=300.0,
        help="seconds to wait for a message, 300 by default",
    )
    _add_from(parser)
    add_quiet(parser)
    add_output(parser, "profile")
    example(
        parser,
        "pipeloom profile --model examples.gpt:small --stages 4 -o profile.json",
        "pipeloom profile --model examples.gpt:small --stages 4 --ranks 2 --repeats 20 -o p.json",
        "pipeloom profile --model examples.gpt:small --layers --ranks 2 -o layers.json",
        "pipeloom profile --model hf:my-llama,seq=4096 --stages 8 --memory-only -o memory.json",
        "pipeloom profile --from traces/ --memory 1.2G,0.9G --t-comm 0.1 -o profile.json",
        "pipeloom profile --from timers.csv --like profile.json --split 0.6 -o new.json",
    )


def _add_more(parser: argparse.ArgumentParser) -> None:
    """Adds what may be measured as well."""
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="also measure the recomputation of a forward and the memory held until then (t_r, "
        "m_r)",
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="also measure F and BW at the same time, as the runtime overlaps them (t_fb)",
    )
    parser.add_argument(
        "--offload",
        action="store_true",
        help="also measure offloading to the host (m_o, offload_bytes, host_link)",
    )


def _add_from(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("from ops measured elsewhere")
    group.add_argument(
        "--from",
        dest="files",
        metavar="FILE",
        nargs="+",
        help="traces of torch's profiler, one per rank, or their folder; a schedule of run "
        "--trace; a CSV table with the columns stage, microbatch, op, ms; Primus's traces",
    )
    group.add_argument(
        "--split",
        metavar="X",
        type=number,
        help="share of B in a BW that ran as one op, from 0 to 1; 0.5 by default",
    )
    group.add_argument(
        "--memory",
        metavar="M_B[,M_W]",
        type=_memory,
        help="activation memory of each stage, such as 1.2G or 1.2G,0.9G; M_W is M_B by default",
    )
    group.add_argument("--t-comm", metavar="MS", type=number, help="delay of a message in ms")
    group.add_argument(
        "--like",
        metavar="FILE",
        help="profile of the same stages, schedule or program that supplies what the files lack "
        "(memory, sizes, links, share of B); with --memory-only, times and links",
    )


def _memory(text: str) -> list[float]:
    return [float(limit(word)) for word in text.split(",")]


def run(args: argparse.Namespace) -> int:
    check_output(args)
    if args.files is not None:
        return _run_from(args)
    _check_measuring(args)
    need_torch()
    announce_loading(args)
    from pipeloom.training import measure

    chosen = options(args, *KEYS) | {"warmup": WARMUP if args.warmup is None else args.warmup}
    with typed("stages", "ranks", "like", "pairs", "device", "memory_only"):
        measurement = measure(args.model, **chosen)
    if os.environ.get("RANK", "0") == "0":  # under torchrun rank 0 alone speaks
        answer = {"measured": measurement.record()}
        finish(args, measurement.document(), answer, _words(measurement))
    return 0


def _run_from(args: argparse.Namespace) -> int:
    from pipeloom.planner.measured.profile import profile_from

    measuring = {key for key in KEYS if key not in (*SHARED, *FROM_KEYS)} | {"model"}
    unset = {"repeats": 10, "timeout": 300.0, "device": "cpu", "stages_as": "eager"}
    for name in sorted(measuring):
        if getattr(args, name) not in (None, False, unset.get(name)):
            raise InputError(f"--{name}: expected none beside --from, which measures nothing")
    with typed(*FROM_KEYS, *SHARED, files="--from"):
        found = profile_from(
            args.files, **options(args, *FROM_KEYS, *SHARED), progress=ProgressDisplay(args.quiet)
        )
    finish(args, found.document(), {"measured": found.record()}, _words(found))
    return 0


def _check_measuring(args: argparse.Namespace) -> None:
    if args.model is None:
        raise InputError("--model: missing; expected a model source, or --from and files")
    if args.stages is None and not args.layers:
        raise InputError("--stages: missing; expected a number of stages, or --layers")
    for name in FROM_KEYS:
        if getattr(args, name) is not None and not (name == "like" and args.memory_only):
            raise InputError(f"--{name.replace('_', '-')}: expected it beside --from alone")


def _words(measurement: Measurement) -> str:
    """A row per stage, each time with the spread of its middle half; messages and copies; stages of
    which B computes a good part of the weight gradients."""
    from pipeloom.ir.model.weight_coverage import worth_telling
    from pipeloom.ir.units import amount, counted, duration

    profile = measurement.profile
    kinds = sorted({kind for times in measurement.times for kind in times})
    columns = {f"T_{kind.name}": [times.get(kind) for times in measurement.times] for kind in kinds}
    if measurement.pairs:
        columns["T_FB"] = list(measurement.pairs)
    sizes = {"M_B": "m_b", "M_W": "m_w", "M_R": "m_r", "M_O": "m_o", "moved": "offload_bytes"}
    if not kinds:  # memory alone
        sizes |= {
            "sent": "activation_bytes",
            "weights": "weight_bytes",
            "gradients": "grad_bytes",
            "optimizer": "optimizer_bytes",
        }
    held = {name: [getattr(stage, key) for stage in profile.stages] for name, key in sizes.items()}
    known = {name: figures for name, figures in held.items() if set(figures) != {None}}
    names = [
        stage.layers[0].name if measurement.by_layers else f"stage {s}"
        for s, stage in enumerate(profile.stages)
    ]
    rows = [
        [
            names[s],
            *(
                "" if figure is None else f"{duration(figure.median)} +-{figure.spread / 2:.0%}"
                for figure in (figures[s] for figures in columns.values())
            ),
            *("" if figures[s] is None else amount(figures[s]) for figures in known.values()),
        ]
        for s in range(len(names))
    ]
    lines = [table(["", *columns, *known], rows)]
    if profile.micro_batch is not None:
        lines.append(f"microbatches of {counted(profile.micro_batch, 'sequence')}")
    if measurement.delay is not None:
        lines.append(f"t_comm {duration(measurement.delay.median)}")
    links = {
        "links": None if profile.links is None else profile.links.default,
        "host link": profile.host_link,
    }
    for name, link in links.items():
        if link is not None:
            rate = f"{link.gigabytes_per_second:.4g} GB/s"
            lines.append(f"{name} {rate}, latency {duration(link.latency)}")
    if not kinds and {stage.t_f for stage in profile.stages} == {1.0}:
        lines.append("each op takes 1 ms, as none was run: --like says times")
    spreads = [abs(figure.spread) / 2 for times in measurement.times for figure in times.values()]
    if max(spreads, default=0.0) > UNSTEADY:
        lines.append(
            f"note: times spread by up to {max(spreads):.0%}, more than {UNSTEADY:.0%}: a plan "
            "relies on them; measure on an idle machine, or with more --repeats"
        )
    lines += [
        f"note: {names[s]}: BW took less time than B alone, which it contains: measure again"
        for s, stage in enumerate(profile.stages)
        if stage.t_bw is not None and stage.t_bw < stage.t_b
    ]
    lines += [one.of(names[one.stage]) for one in worth_telling(measurement.coverage)]
    lines += [f"{names[s]} runs eager: {why}" for s, why in measurement.eager.items()]
    return "\n".join(lines)
