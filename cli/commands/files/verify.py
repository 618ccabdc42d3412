"""Checks a schedule or a program independently of who made it; lists every violation."""

from __future__ import annotations

import argparse

from ...arguments import example
from ...output import answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="schedule or program, - for standard input")
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        help="prove the schedule's lower bound by this file, which optimize --certificate writes",
    )
    example(
        parser,
        "pipeloom verify schedule.json",
        "pipeloom verify program.json --json",
        "pipeloom verify schedule.json --certificate certificate.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.verify import verify

    found = verify(args.file, certificate=args.certificate)
    answer(args, {"file": args.file} | found.to_dict(), found)
    return 0 if found.ok else 1
