"""Trains with a compiled program: one process per rank on this machine, or one rank under torchrun.

A program compiled with --data-parallel can run in several replicas, each with its own data.

--model names a model source such as examples.gpt:small, which is in the checkout. Its module can be
in the current folder.
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError
from pipeloom.ir.units import counted, duration

from ... import model_arguments
from ...arguments import amount, count, example
from ...inputs import options, typed
from ...output import check_apart, print_json, say_words

if TYPE_CHECKING:
    from pipeloom.runtime.train.train import RunResult

KEYS = (
    "trace", "param_dtype", "reduce_dtype", "clip_grad_norm", "loss_scale", "no_post_validation",
    "varying_shapes", "stages_as", "replicas", "save", "every", "resume",
    "eval_every", "check",
)  # fmt: skip
SHOWN = 100  # losses that the text holds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments.add_training(parser)
    parser.add_argument(
        "--trace", metavar="FILE", help="write the median step as a schedule with measured times"
    )
    _add_precision(parser)
    parser.add_argument(
        "--varying-shapes",
        action="store_true",
        help="allow microbatches to change their shapes from step to step",
    )
    model_arguments.add_stages_as(parser)
    parser.add_argument(
        "--replicas",
        metavar="R",
        type=count,
        help="replicas of a program compiled with --data-parallel, each with its own ranks and "
        "microbatches; by default, the profile's data_parallel, or as many as torchrun starts",
    )
    _add_checkpoints(parser)
    example(
        parser,
        "pipeloom run program.json --model examples.gpt:small --steps 10 --trace measured.json",
        "pipeloom run program.json --model examples.gpt:small --steps 4 --pace",
        "pipeloom run program.json --model examples.gpt:small --param-dtype bfloat16 "
        "--reduce-dtype float32 --clip-grad-norm 1",
        "pipeloom run program.json --model examples.gpt:small --param-dtype float16 --loss-scale "
        "65536",
        "pipeloom run program.json --model examples.gpt:small --replicas 2",
        "pipeloom run program.json --model examples.gpt:small --steps 40 --save out/gpt --every 10",
        "pipeloom run other.json --model examples.gpt:small --steps 80 --save out/gpt --resume "
        "out/gpt",
        "torchrun --nproc-per-node 4 -m pipeloom run program.json --model examples.gpt:small",
    )


def _add_precision(parser: argparse.ArgumentParser) -> None:
    """Adds the dtypes, and what is done about large gradients and overflow."""
    parser.add_argument(
        "--param-dtype",
        choices=model_arguments.DTYPES,
        help="mixed precision: compute with parameters, and send them, in this type; the optimizer "
        "keeps them in --dtype",
    )
    parser.add_argument(
        "--reduce-dtype",
        choices=model_arguments.DTYPES,
        help="type of gradients that are sent or summed over ranks; --param-dtype by default",
    )
    parser.add_argument(
        "--clip-grad-norm",
        metavar="X",
        type=amount,
        help="scale gradients down if their norm over the whole model exceeds X",
    )
    parser.add_argument(
        "--loss-scale",
        metavar="X",
        type=amount,
        help="multiply losses by X and divide gradients by it; a step with NaN or Inf is skipped "
        "and halves X, 2000 steps without double it",
    )
    parser.add_argument(
        "--no-post-validation",
        action="store_true",
        help="wait for the norm before the optimizer step, even if the program was compiled with "
        "--post-validation",
    )
    parser.add_argument(
        "--no-check",
        dest="check",
        action="store_false",
        help="do not check in the first step that all ranks and replicas run the same job",
    )


def _add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """Adds where checkpoints go and come from, and how often they and evaluations are made."""
    parser.add_argument(
        "--save",
        metavar="DIR",
        help="folder for checkpoints; one is written at the end and every --every steps",
    )
    parser.add_argument("--every", metavar="N", type=count, help="steps between checkpoints")
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="continue from a checkpoint, or from the last complete one in a folder, until --steps "
        "steps in all; the program can differ",
    )
    parser.add_argument(
        "--eval-every",
        metavar="N",
        type=count,
        help="number of steps between evaluations on the model source's eval_batch",
    )


def run(args: argparse.Namespace) -> int:
    if args.every is not None and args.save is None:
        raise InputError(f"--every: expected a folder to save in, too, got {args.every} alone")
    model_arguments.need_torch()
    model_arguments.need_program(args.program)
    model_arguments.announce_loading(args)
    from pipeloom.ir.formats import check_writable
    from pipeloom.training import run as train

    if args.trace is not None:
        check_apart(args, "--trace", args.trace)
        check_writable(args.trace)
    with typed(*model_arguments.TYPED):
        asked = options(args, *model_arguments.TRAINING, *KEYS)
        with model_arguments.interrupted(args.save) as told:
            result = train(
                args.program, args.model, **asked | {"callbacks": [told, *args.callbacks]}
            )
    if result is None:  # under torchrun rank 0 alone speaks
        return 0
    if args.json:
        print_json(result.to_dict() | {"trace": args.trace})
        return 0
    for name, words in _lines(result):
        say_words(f"{name:<14}{words}")
    if args.trace is not None:
        say_words(f"written to {args.trace}")
    return 0


def _lines(result: RunResult) -> list[tuple[str, str]]:
    from pipeloom.ir.model.weight_coverage import worth_telling
    from pipeloom.ir.units import amount
    from pipeloom.report.summaries import summary

    steps = len(result.losses)
    settled = result.seconds[1:] or result.seconds
    taken = f"median {duration(statistics.median_high(settled) * 1e3)}"
    taken += " after the first" * (steps > 1)
    before = f" after the {result.first_step} of the checkpoint" if result.first_step else ""
    taken_in = counted(steps, "step") + before
    return [
        ("loss", f"{result.losses[0]:.4f} to {result.losses[-1]:.4f} in {taken_in}"),
        ("losses", _losses(result.losses)),
        *([("evaluations", _evaluations(result))] if result.evaluations else []),
        ("step", f"{taken}, fastest {duration(min(result.seconds) * 1e3)}"),
        ("planned", summary(result.planned)),
        ("measured", f"{summary(result.measured)} (step {result.measured_step})"),
        ("outside ops", f"{_outside(result)} of step {result.measured_step}: inputs, optimizer"),
        *([("expected", str(expected))] if (expected := result.expected) is not None else []),
        *([("replicas", _replicas(result))] if result.replicas > 1 else []),
        ("peak memory", f"{', '.join(map(amount, result.peak_memory))} (bytes, rank by rank)"),
        *(("weights", str(one)) for one in worth_telling(result.coverage)),
        *(("note", note) for note in result.notes),
    ]


def _outside(result: RunResult) -> str:
    """The time of the measured step before its first op on any rank and after its last one."""
    step = result.seconds[result.measured_step - result.first_step] * 1e3
    return duration(max(0.0, step - result.measured.known_timing.makespan))


def _evaluations(result: RunResult) -> str:
    (_, first), (step, last) = result.evaluations[0], result.evaluations[-1]
    if len(result.evaluations) == 1:
        return f"1, {last:.4f} after step {step}"
    return f"{len(result.evaluations)}, {first:.4f} to {last:.4f} after step {step}"


def _replicas(result: RunResult) -> str:
    count, ranks = result.replicas, result.planned.problem.ranks
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
