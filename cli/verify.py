"""Checks a schedule or a program independently of who made it; lists every violation."""

from __future__ import annotations

import argparse
from typing import Any

from pipeloom.ir.errors import InputError

from .arguments import example
from .output import print_json
from .problems import named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="schedule or program, - for standard input")
    example(parser, "pipeloom verify schedule.json", "pipeloom verify program.json --json")


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.reading import read_json

    document = read_json(args.file)
    try:
        kind, violations = _verify(document)
    except InputError as error:
        raise InputError(*(f"{named(args.file)}: {line}" for line in error.errors)) from None
    if args.json:
        print_json(
            {"file": args.file, "kind": kind, "ok": not violations, "violations": violations}
        )
    elif violations:
        print("\n".join(f"{named(args.file)}: {violation}" for violation in violations))
    else:
        print(f"ok: {named(args.file)} is a valid {kind}")
    return 1 if violations else 0


def _verify(document: dict[str, Any]) -> tuple[str, list[str]]:
    """The kind of file, and what is wrong with it."""
    from pipeloom.ir.files import PROGRAM, SCHEDULE
    from pipeloom.ir.reading import show

    given = document.get("format")
    if given == SCHEDULE:
        from pipeloom.ir.verify import verify_schedule

        return "schedule", verify_schedule(document)
    if given == PROGRAM:
        from pipeloom.ir.verify_program import verify_program

        return "program", verify_program(document)
    got = "nothing" if given is None else show(given)
    raise InputError(f'format: expected "{SCHEDULE}" or "{PROGRAM}", got {got}')
