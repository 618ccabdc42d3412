"""Predicts the time, memory and communication of a step of a known configuration.

Stage times come from the model's arithmetic and the cluster's calibrated rates; the schedule is
simulated with them. Without --gpu or --cluster, prints the model's parameters, FLOPs and bytes.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from pipeloom.ir.errors import InputError

from ...arguments import example
from ...failures import say
from ...inputs import typed
from ...output import answer, check_output
from ...progress import interruptible
from ...run_arguments import RUN_KEYS, add_model_and_devices, add_run, run_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_and_devices(parser)
    parser.add_argument(
        "--measured",
        metavar="PROFILE",
        help="profile by layers whose times replace the calculated ones",
    )
    add_run(parser)
    parser.add_argument(
        "--run",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_pair,
        help="another key of a run, such as compile=true",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write the pipeline profile; - is standard output; not written by default",
    )
    example(
        parser,
        "pipeloom predict llama-3-70b --gpu H100 --gpus 64 --tp 8 --pp 4 --global-batch 128",
        "pipeloom predict config.json --cluster cluster.json --gpus 16 --pp 8 -o profile.json",
        "pipeloom predict llama-2-70b --micro-batch 8",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.models.run import ALSO, KEYS
    from pipeloom.planner.models.words import RunValues

    check_output(args)
    others = {key: f"--run: {key}" for key in dict(args.run)}
    with typed(*RUN_KEYS, "gpu", "cluster", "measured", **others):
        RunValues(dict(args.run), (*KEYS, *ALSO)).raise_faults()
        if args.gpu is None and args.cluster is None:
            return _arithmetic(args)
        return _predict(args)


def _predict(args: argparse.Namespace) -> int:
    from pipeloom.planner.predict import predict

    given = run_options(args) | ({} if args.gpu is None else {"gpu": args.gpu})
    named = {"cluster": args.cluster, "measured": args.measured}
    with interruptible() as interrupt:
        found = predict(args.model, **named, should_stop=interrupt, **given | dict(args.run))
    if interrupt.pressed:
        say("interrupted: this is the best schedule so far")
    facts = found.to_dict()
    answer(args, facts, found, facts["profile"])
    return 0


def _arithmetic(args: argparse.Namespace) -> int:
    """The model's figures, for which no device has to be known."""
    from pipeloom.planner.models.arithmetic import arithmetic

    for option in ("measured", "output", "schedule"):
        if getattr(args, option) is not None:
            raise InputError(f"--{option}: expected --gpu or --cluster with it")
    found = arithmetic(args.model, **run_options(args) | dict(args.run))
    answer(args, found.to_dict(), found)
    return 0


def _pair(text: str) -> tuple[str, Any]:
    """``sequence_parallel=false``: a value of JSON, else a word."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
