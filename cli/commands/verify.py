"""Checks a schedule or a program independently of who made it; lists every violation."""

from __future__ import annotations

import argparse

from ..arguments import example
from ..output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="schedule or program, - for standard input")
    example(parser, "pipeloom verify schedule.json", "pipeloom verify program.json --json")


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.verify import verify

    found = verify(args.file)
    if args.json:
        print_json({"file": args.file} | found.to_dict())
    else:
        print(found)
    return 0 if found.ok else 1
