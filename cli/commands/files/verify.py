"""Checks a schedule or a program independently of who made it; lists every violation."""

from __future__ import annotations

import argparse

from pipeloom.ir.errors import InputError

from ...arguments import example
from ...output import answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="schedule or program, or -")
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        help="prove the schedule's lower bound by this file, which optimize --certificate writes",
    )
    example(
        parser,
        "pipeloom verify schedule.json",
        "pipeloom verify schedule.json program.json --json",
        "pipeloom verify schedule.json --certificate certificate.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.verify import verify

    if args.certificate and len(args.files) > 1:
        raise InputError(f"--certificate: expected one schedule, got {len(args.files)} files")
    found = [verify(file, certificate=args.certificate) for file in args.files]
    facts = [{"file": f} | each.to_dict() for f, each in zip(args.files, found, strict=True)]
    shown = facts[0] if len(facts) == 1 else {"files": facts}
    answer(args, shown, "\n".join(map(str, found)))
    return 0 if all(each.ok for each in found) else 1
