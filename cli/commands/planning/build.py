"""Builds the schedule of a named family for a profile."""

from __future__ import annotations

import argparse

from pipeloom.report.text_table import table

from ... import arguments
from ...inputs import MICROBATCHES, options, read_profile, typed
from ...output import answer, check_output, finish_schedule
from ...progress import ProgressDisplay


class _List(argparse.Action):
    """``--list`` answers at once: it needs none of the other arguments."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object
    ) -> None:
        namespace.list = True
        for action in parser._actions:  # argparse has no public way to lift a requirement
            action.required = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action=_List, nargs=0, default=False, help="list the families")
    parser.add_argument("family", metavar="FAMILY", help=f"such as {arguments.FAMILY_EXAMPLES}")
    arguments.add_profile(parser)
    arguments.add_instance(parser)
    arguments.add_memory_limit(parser)
    parser.add_argument(
        "--replicate",
        metavar="S,S",
        action=arguments.Together,
        type=arguments.stages,
        default=[],
        help="with weight passing, stages whose weights every rank keeps (such as embedding and "
        "head)",
    )
    arguments.add_cut(parser)
    arguments.add_output(parser, "schedule")
    arguments.example(
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
    from pipeloom.planner.build import build

    check_output(args)
    display = ProgressDisplay()
    with typed("replicate", "partition", microbatches=MICROBATCHES, family="FAMILY"):
        schedule = build(
            args.family,
            read_profile(args, display),
            args.microbatches,
            **options(args, "memory_limit", "objective", "replicate", "partition"),
            progress=display,
        )
    finish_schedule(args, schedule)
    return 0


def _list_families(args: argparse.Namespace) -> int:
    from pipeloom.planner.build import families

    found = families()
    facts = {"families": [{"name": n, "summary": words} for n, words in found.items()]}
    rows = [[n, words] for n, words in found.items()]
    answer(args, facts, table(["family", "what it is"], rows))
    return 0
