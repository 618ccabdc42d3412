"""Checks a schedule or a program independently of who made it; lists every violation."""

from __future__ import annotations

import argparse
from typing import Any

from pipeloom.ir.errors import InputError

from ..arguments import example
from ..inputs import named
from ..output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="schedule or program, - for standard input")
    example(parser, "pipeloom verify schedule.json", "pipeloom verify program.json --json")


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.formats.json_reader import read_json

    document = read_json(args.file)
    try:
        kind, violations = _verify(document)
    except InputError as error:
        raise InputError(*(f"{named(args.file)}: {line}" for line in error.errors)) from None
    averaging = None if violations else _averaging(document)
    if args.json:
        answer = {"file": args.file, "kind": kind, "ok": not violations, "violations": violations}
        print_json(answer | ({} if averaging is None else {"averaging": averaging}))
    elif violations:
        print("\n".join(f"{named(args.file)}: {violation}" for violation in violations))
    else:
        print(f"ok: {named(args.file)} is a valid {kind}{_left(averaging)}")
    return 1 if violations else 0


def _averaging(document: dict[str, Any]) -> float | None:
    """What averaging over replicas adds to the cost of a valid file; None where it has none."""
    report = document.get("schedule", document)["report"]
    if "step" not in report:
        return None
    return float(report["step"]) - float(report[report["objective"]])


def _left(averaging: float | None) -> str:
    from pipeloom.ir.units import duration

    return "" if averaging is None else f"; {duration(averaging)} of averaging left after ops"


def _verify(document: dict[str, Any]) -> tuple[str, list[str]]:
    """The kind of file, and what is wrong with it."""
    from pipeloom.ir.formats import PROGRAM, SCHEDULE
    from pipeloom.ir.formats.json_reader import format_hint, show

    given = document.get("format")
    if given == SCHEDULE:
        from pipeloom.ir.verify.schedule import verify_schedule

        return "schedule", verify_schedule(document)
    if given == PROGRAM:
        from pipeloom.ir.verify.program import verify_program

        return "program", verify_program(document)
    got = "nothing" if given is None else show(given)
    raise InputError(
        f'format: expected "{SCHEDULE}" or "{PROGRAM}", got {got}{format_hint(SCHEDULE, given)}'
    )
