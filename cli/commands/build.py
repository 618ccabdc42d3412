"""Builds a named schedule: a family's fixed shape, filled in for a profile."""

from __future__ import annotations

import argparse
import sys

from pipeloom.ir.errors import InputError
from pipeloom.planner.partition.fixed_cut import add_cut, load_profiles
from pipeloom.report.text_table import table

from ..arguments import (
    FAMILY_EXAMPLES,
    add_instance,
    add_memory_limit,
    add_output,
    add_profile,
    example,
    stages,
)
from ..inputs import named, transfer_note, typed
from ..output import check_output, finish_schedule, print_json


class _List(argparse.Action):
    """``--list`` answers at once: it needs none of the other arguments."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object
    ) -> None:
        namespace.list = True
        for action in parser._actions:  # argparse has no public way to lift a requirement
            action.required = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action=_List, nargs=0, default=False, help="name the families")
    parser.add_argument("family", metavar="FAMILY", help=f"such as {FAMILY_EXAMPLES}")
    add_profile(parser)
    add_instance(parser)
    add_memory_limit(parser)
    parser.add_argument(
        "--replicate",
        metavar="S,S",
        type=stages,
        default=[],
        help="where weights travel: stages whose weights stay, a copy on every rank that runs them "
        "(embedding and head, say)",
    )
    add_cut(parser)
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom build --list",
        "pipeloom build zb-h1 profile.json -m 24 -o schedule.json",
        "pipeloom build 1f1b profile.json -m 24 | pipeloom show -",
        "pipeloom build zb-v layers.json -m 24 --partition even -o schedule.json",
        "pipeloom build weipipe-interleave profile.json -m 8 --replicate 0,3 -o schedule.json",
    )


def run(args: argparse.Namespace) -> int:
    if args.list:
        return _list_families(args)
    from pipeloom.ir.model.problem import Objective
    from pipeloom.solver.families import build_family, find_family
    from pipeloom.solver.weight_passing.replicate import replicate

    find_family(args.family)
    check_output(args)
    _, profile_of, _ = load_profiles(args)
    profile = profile_of(args.family)
    try:
        schedule = build_family(
            args.family,
            profile,
            args.microbatches,
            memory_limit=args.memory_limit,
            objective=Objective(args.objective),
        )
    except InputError as error:
        raise InputError(*(f"{named(args.profile)}: {line}" for line in error.errors)) from None
    if args.replicate:
        with typed("replicate"):
            schedule = replicate(schedule, args.replicate)
    note = transfer_note(schedule)
    if note is not None:
        print(f"pipeloom: {named(args.profile)}: {note}", file=sys.stderr)
    finish_schedule(args, schedule)
    return 0


def _list_families(args: argparse.Namespace) -> int:
    from pipeloom.solver.families import FAMILIES

    if args.json:
        print_json({"families": [{"name": n, "summary": f.summary} for n, f in FAMILIES.items()]})
    else:
        print(table(["family", "what it is"], [[n, f.summary] for n, f in FAMILIES.items()]))
    return 0
