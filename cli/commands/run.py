"""Trains with a compiled program: one process a rank on this machine, or one rank under torchrun.

A program compiled with --data-parallel runs in several replicas at once, each trained on data of
its own.

--model names a model source, as in examples.gpt:small, which is in the checkout; its module is
looked for in the current folder too.
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeloom.ir.units import counted
from pipeloom.planner.documents import named, naming

from ..arguments import amount, count, example
from ..inputs import typed
from ..model_arguments import DTYPES, TYPED, add_training, need_torch, training_settings
from ..output import print_json

if TYPE_CHECKING:
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.runtime.train.train import RunResult


SHOWN = 100  # losses that the text holds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training(parser, steps=1)
    parser.add_argument(
        "--trace", metavar="FILE", help="writes the median step, a schedule with measured times"
    )
    parser.add_argument(
        "--param-dtype",
        choices=DTYPES,
        help="mixed precision: parameters are computed with, and travel, in this; their owners "
        "keep "
        "and step them in --dtype",
    )
    parser.add_argument(
        "--reduce-dtype",
        choices=DTYPES,
        help="of gradients that travel or are summed over ranks; that of --param-dtype by default",
    )
    parser.add_argument(
        "--clip-grad-norm",
        metavar="X",
        type=amount,
        help="scales gradients whose norm over the whole model is above X",
    )
    parser.add_argument(
        "--loss-scale",
        metavar="X",
        type=amount,
        help="multiplies losses by X and divides gradients by it; halved, and the step skipped, "
        "where "
        "they have NaN or Inf, doubled after 2000 steps without",
    )
    parser.add_argument(
        "--no-post-validation",
        action="store_true",
        help="all ranks wait for the norm before they step, although the program was compiled with "
        "--post-validation",
    )
    parser.add_argument(
        "--varying-shapes",
        action="store_true",
        help="microbatches may have other shapes in each step",
    )
    parser.add_argument(
        "--cuda-graph",
        action="store_true",
        help="the fourth step is recorded as a CUDA graph, which later ones launch: with --device "
        "cuda, without "
        "clipping and loss scaling",
    )
    parser.add_argument(
        "--replicas",
        metavar="R",
        type=count,
        help="of a program compiled with --data-parallel: R times its ranks are started, each "
        "replica is "
        "trained on its share of R times its microbatches; by default as the profile's "
        "data_parallel has "
        "it, under torchrun as many as its processes make up",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="ranks are threads of this process, not processes: on one GPU, too",
    )
    example(
        parser,
        "pipeloom run program.json --model examples.gpt:small --steps 10 --trace measured.json",
        "pipeloom run program.json --model examples.gpt:small --steps 4 --pace",
        "pipeloom run program.json --model examples.gpt:small --param-dtype bfloat16 "
        "--reduce-dtype float32 --clip-grad-norm 1",
        "pipeloom run program.json --model examples.gpt:small --param-dtype float16 --loss-scale "
        "65536",
        "pipeloom run program.json --model examples.gpt:small --replicas 2",
        "torchrun --nproc-per-node 4 -m pipeloom run program.json --model examples.gpt:small",
    )


def run(args: argparse.Namespace) -> int:
    need_torch()
    from pipeloom.ir.formats import check_writable, parse_program
    from pipeloom.ir.formats.json_reader import read_json
    from pipeloom.runtime.train.replicas import count_replicas
    from pipeloom.runtime.train.train import run_program

    if args.trace is not None:
        check_writable(args.trace)
    program = parse_program(read_json(args.program), named(args.program))
    settings = training_settings(
        args,
        param_dtype=args.param_dtype,
        reduce_dtype=args.reduce_dtype,
        clip_grad_norm=args.clip_grad_norm,
        loss_scale=args.loss_scale,
        post_validation=not args.no_post_validation,
        varying_shapes=args.varying_shapes,
        cuda_graph=args.cuda_graph,
        local=args.local,
        replicas=args.replicas,
    )
    with naming(named(args.program)), typed("local", "cuda_graph"):
        count_replicas(program, settings)
    with typed(*TYPED):
        result = run_program(program, args.model, settings, trace_path=args.trace)
    if result is not None:  # under torchrun rank 0 alone speaks
        _answer(args, program.schedule, result)
    return 0


def _answer(args: argparse.Namespace, planned: Schedule, result: RunResult) -> None:
    if args.json:
        print_json(
            {
                "steps": args.steps,
                "replicas": result.replicas,
                "losses": list(result.losses),
                "seconds": list(result.seconds),
                "peak_memory": list(result.peak_memory),
                "device_peak_memory": list(result.device_peak),
                "planned": _figures(planned),
                "measured": _figures(result.measured),
                "note": result.note,
                "trace": args.trace,
            }
        )
        return
    for name, words in _lines(planned, result):
        print(f"{name:<14}{words}")
    if args.trace is not None:
        print(f"written to {args.trace}")


def _figures(schedule: Schedule) -> dict[str, Any]:
    from pipeloom.report.bars import timed, times

    timing = times(timed(schedule))
    return {
        "period": timing.period,
        "makespan": timing.makespan,
        "bubble_rate": timing.bubble_rate(schedule.problem.objective),
    }


def _lines(planned: Schedule, result: RunResult) -> list[tuple[str, str]]:
    from pipeloom.ir.units import amount, duration
    from pipeloom.report.summaries import summary

    steps = len(result.losses)
    taken = f"median {duration(statistics.median(result.seconds) * 1e3)}"
    return [
        ("loss", f"{result.losses[0]:.4f} to {result.losses[-1]:.4f} in {counted(steps, 'step')}"),
        ("losses", _losses(result.losses)),
        ("step", f"{taken}, fastest {duration(min(result.seconds) * 1e3)}"),
        ("planned", summary(planned)),
        ("measured", summary(result.measured)),
        *([("replicas", _replicas(planned, result))] if result.replicas > 1 else []),
        ("peak memory", f"{', '.join(map(amount, result.peak_memory))} (bytes, rank by rank)"),
        *([("note", result.note)] if result.note else []),
    ]


def _replicas(planned: Schedule, result: RunResult) -> str:
    count, ranks = result.replicas, planned.problem.ranks
    return (
        f"{count} of {ranks} ranks; losses, steps and peaks are over all of them, measured is the "
        "first"
    )


def _losses(losses: Sequence[float]) -> str:
    """Each step's, up to a hundred; of a longer run the last ones."""
    if len(losses) <= SHOWN:
        words = " ".join(f"{loss:.4f}" for loss in losses)
    else:
        last = " ".join(f"{loss:.4f}" for loss in losses[-SHOWN:])
        words = f"... {last} (--json has all)"
    return textwrap.fill(words, 86).replace("\n", "\n" + " " * 14)
