"""Finds the best configurations of a model on a number of GPUs, with a bound for all of them.

Chooses parallel degrees, microbatch, recomputation, sharding, cut and schedule, unless options fix
them. Steps are predicted as by `predict`. Ctrl-C or SIGTERM writes the best plan so far.
"""

from __future__ import annotations

import argparse
from typing import Any

from pipeloom.ir.errors import InputError

from ... import arguments
from ...failures import say
from ...inputs import options, typed
from ...output import answer, check_folder
from ...progress import interruptible, watched
from ...run_arguments import RUN_KEYS, add_model_and_devices, add_run, run_options

LIMITS = ("time_limit", "work_limit", "workers", "scheduler")
NAMES = (*RUN_KEYS, *LIMITS, "offload", "passing", "headroom", "gpu", "cluster", "scale", "output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_and_devices(parser)
    add_run(parser, planned=True).add_argument(
        "--offload",
        choices=["auto", "none"],
        default="none",
        help="offload activations to the host over the cluster's host link, for the microbatches "
        "for which it pays (auto), or none (the default)",
    )
    parser.add_argument(
        "--headroom",
        metavar="X",
        type=arguments.limit,
        help="memory to leave free on each device, such as 4GB; none by default",
    )
    parser.add_argument(
        "--passing",
        choices=["activations", "weights", "auto"],
        default="activations",
        help="what ranks send: activations (the default; each stage stays on its rank), weights "
        "(each microbatch stays on its rank), or the better of both (auto)",
    )
    several = parser.add_argument_group("scaling")
    several.add_argument(
        "--scale",
        metavar="N,N,...",
        action=arguments.Together,
        type=arguments.scale,
        help="numbers of GPUs, instead of --gpus: find the best plan for each of them",
    )
    several.add_argument(
        "--scaling",
        choices=["weak", "strong"],
        help="weak (the default): --global-batch is for the fewest GPUs and grows with their "
        "number; strong: it stays the same",
    )
    search = parser.add_argument_group("the search")
    arguments.add_workers(
        search, "configurations, or numbers of GPUs,", "1, with --scale one for every two cores,"
    )
    arguments.add_limits(
        search,
        "in all, or for each number of --scale, 45 by default; stops earlier once no plan can be "
        "better",
        " in all, or for each number",
        "the answer is the same on every machine",
    )
    arguments.add_quiet(parser)
    arguments.add_folder(
        parser, "the best plan's profile, schedule, program and other systems' flags"
    )
    arguments.example(
        parser,
        "pipeloom plan llama-3-70b --gpu H100 --gpus 64 --global-batch 128 --seq 8192 -o plan",
        "pipeloom plan config.json --cluster cluster.json --gpus 16 --global-batch 64 --tp 2",
        "pipeloom plan llama-3-70b --gpu H100 --scale 64,256,1024 --global-batch 128 -o scaling",
    )


def run(args: argparse.Namespace) -> int:
    if args.scale:
        return _run_scaling(args)
    if args.scaling:
        raise InputError("--scaling: expected numbers of GPUs with it, --scale 8,16")
    from pipeloom.planner.plan import plan

    given = _given(args)
    with typed(*NAMES), watched(args.quiet) as display, interruptible() as interrupt:
        check_folder(args.output, "plan.json")
        found = plan(
            args.model,
            args.cluster,
            **options(args, *LIMITS) | {"workers": args.workers or 1},
            progress=display,
            should_stop=interrupt,
            **given,
        )
        if interrupt.pressed:
            say("interrupted: this is the best plan so far")
        notes = () if args.output is None else found.write(args.output)
    facts = found.to_dict() | {"output": args.output, "notes": list(notes)}
    lines = [f"note: {note}" for note in notes]
    if args.output:
        lines.append(f"written to {args.output}")
    elif found.best.found.order is not None:
        lines.append("with -o DIR a note has the command that predicts this plan")
    answer(args, facts, "\n".join([str(found), *lines]))
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    gpu = {} if args.gpu is None else {"gpu": args.gpu}
    return (
        run_options(args)
        | gpu
        | {"offload": args.offload, "passing": args.passing, "headroom": args.headroom}
    )


def _run_scaling(args: argparse.Namespace) -> int:
    from pipeloom.planner.scaling import scaling
    from pipeloom.planner.solving.workers import processes_here

    given = _given(args)
    if "gpus" in given:
        raise InputError("--gpus: expected none with --scale, which has several")
    if "global_batch" not in given:
        raise InputError("--global-batch: missing; expected a whole number >= 1")
    with typed(*NAMES), watched(args.quiet) as display, interruptible() as interrupt:
        check_folder(args.output, "scaling.json")
        found = scaling(
            args.model,
            args.cluster,
            gpus=args.scale,
            scaling=args.scaling or "weak",
            **options(args, *LIMITS) | {"workers": args.workers or processes_here()},
            progress=display,
            should_stop=interrupt,
            **given,
        )
        if args.output is not None:
            found.write(args.output)
    words = f"{found}\nwritten to {args.output}" if args.output else str(found)
    answer(args, found.to_dict() | {"output": args.output}, words)
    return 0 if found.planned else 1
