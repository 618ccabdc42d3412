"""Checks a schedule or a program independently of who made it; lists every violation."""

from __future__ import annotations

import argparse

from pipeloom.ir.errors import InputError

from ...arguments import example
from ...failures import tell
from ...output import answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="schedule or program, or -")
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        help="certificate of the schedule's lower bound, written by optimize --certificate",
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
    facts, words, code = [], [], 0
    for file in args.files:
        try:
            found = verify(file, certificate=args.certificate)
        except InputError as error:
            if len(args.files) == 1:
                raise
            code = tell(error, as_json=False)
            facts.append({"file": file, "error": list(error.lines)})
        else:
            code = max(code, int(not found.ok))
            facts.append({"file": file} | found.to_dict())
            words.append(str(found))
    if args.json or words:
        answer(args, facts[0] if len(facts) == 1 else {"files": facts}, "\n".join(words))
    return code
