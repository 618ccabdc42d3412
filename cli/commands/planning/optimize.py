"""Finds the best schedule for a profile under its memory limit, with a certified lower bound.

Ctrl-C or SIGTERM writes the best schedule so far.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError

from ... import arguments
from ...failures import say
from ...inputs import CACHE, searched, typed
from ...output import check_apart, check_output, finish
from ...progress import interruptible

if TYPE_CHECKING:
    from pipeloom.planner.explain.answer import Answer
    from pipeloom.planner.inputs.problem_setup import ProfileSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_profile(parser)
    arguments.add_instance(parser)
    arguments.add_memory_limit(parser)
    arguments.add_passing(parser, "auto")
    arguments.add_remat(parser)
    arguments.add_solver(parser, time_limit=20.0)
    arguments.add_partition(parser)
    parser.add_argument(
        "--for",
        dest="for_",
        choices=["megatron", "torchtitan"],
        help="find the best schedule that this system can run: for megatron, 1F1B and interleaved "
        "1F1B on any layout; for torchtitan, torch's own schedules and any order in a CSV, with "
        "interleaved stages or stages in a V",
    )
    parser.add_argument(
        "--copies",
        type=int,
        choices=[1, 2],
        help="largest number of copies of a stage's weights that a chosen placement may need; by "
        "default, 2 if the profile has device_memory and all sizes that count towards it, else 1",
    )
    arguments.add_start(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="explain why no schedule is cheaper, where this one idles, and what more memory, "
        "faster links, even stages or more microbatches would gain (takes up to about 20 s more)",
    )
    arguments.add_cache(
        parser,
        f"for answers, which are verified again before they are reused; by default, {CACHE} if it "
        "is set",
    )
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        help="also write a certificate of the schedule's lower bound, which verify --certificate "
        "checks with code that shares nothing with the solver",
    )
    arguments.add_slow(parser)
    arguments.add_output(parser, "schedule")
    arguments.example(
        parser,
        "pipeloom optimize profile.json -m 24 --memory-limit 16 -o schedule.json",
        "pipeloom optimize profile.json -m 24 --placement interleaved:2 -o schedule.json",
        "pipeloom optimize profile.json -m 24 --passing weights -o schedule.json",
        "pipeloom optimize profile.json -m 24 --passing auto -o schedule.json",
        "pipeloom optimize layers.json -m 24 --max-layers 8 -o schedule.json",
        "pipeloom optimize profile.json -m 24 --memory-limit 4 --recompute auto -o schedule.json",
        "pipeloom optimize profile.json -m 8 --certificate certificate.json -o schedule.json",
        "pipeloom optimize profile.json -m 8 --time-limit 10 --json",
        "pipeloom optimize batch.json --start last.json --time-limit 0.5 -o schedule.json",
        "pipeloom optimize layers.json -m 24 --for megatron -o schedule.json",
        "pipeloom optimize profile.json -m 24 --memory-limit 12 --explain -o schedule.json",
        "pipeloom optimize profile.json -m 24 --slow 3:1.2 -o schedule.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.formats import check_writable

    check_output(args)
    if args.certificate:
        _check_apart(args)
        check_apart(args, "--certificate", args.certificate)
        check_writable(args.certificate)
    names = ("memory_limit", "recompute", "offload", "copies", "for_", "start", "slow")
    answer = searched(args, partial(_plan, args), names=names)
    if answer.stopped:
        say(f"interrupted: {_so_far(answer)}")
    facts, words = answer.to_dict(), str(answer)
    if args.explain:
        with interruptible() as interrupt:
            explained = answer.explain(should_stop=interrupt)
        facts, words = facts | {"explanation": explained.to_dict()}, f"{words}\n\n{explained}"
    certified = bool(args.certificate) and _certify(args.certificate, answer)
    if args.certificate:
        facts |= {"certificate": args.certificate if certified else None}
    finish(args, answer.document, facts, words, answer.schedule)
    return 0 if certified or not args.certificate else 1


def _check_apart(args: argparse.Namespace) -> None:
    """Raises InputError where the certificate would go where the schedule or the answer goes."""
    if args.certificate == "-":
        raise InputError("--certificate: expected a file, got - (standard output)")
    schedule = "-" if args.output is None and not args.json else args.output
    if schedule is not None and os.path.realpath(args.certificate) == os.path.realpath(schedule):
        raise InputError(
            f"--certificate: expected another file than the schedule's, got {args.certificate}"
        )


def _plan(args: argparse.Namespace, profile: ProfileSource, *given: Any, **options: Any) -> Answer:
    from pipeloom.planner.explain.certificate import check_certifiable
    from pipeloom.planner.optimize import optimize

    if args.certificate:
        with typed("certificate"):
            check_certifiable(profile)
    return optimize(profile, *given, **options)


def _certify(path: str, answer: Answer) -> bool:
    """Writes the certificate; False where there is none, which is said."""
    from pipeloom.ir.formats import write_json
    from pipeloom.planner.explain.certificate import shortfall

    try:
        with interruptible() as interrupt:
            certificate = answer.certificate(should_stop=interrupt)
    except InputError as error:
        say(f"--{error}; {path} is not written")
        return False
    write_json(certificate, path)
    if words := shortfall(certificate, answer.schedule):
        say(f"note: {path} {words}")
    return True


def _so_far(answer: Answer) -> str:
    if answer.step is not None:
        return "not every scheme was optimized"
    return "this is the best schedule so far"
