"""Where a command's answer goes: documents, summaries for people, and ``--json``."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from pipeloom.ir.schedule import Schedule

WIDEST = 150
"""Columns of a table in the terminal, and of the sentences under it."""
LEAST_WORDS = 40
"""What the last column of a table is left, however wide the others are."""


def check_output(args: argparse.Namespace) -> None:
    """Fails before the work where its result could not be written."""
    from pipeloom.ir.files import check_writable

    if args.output == "-" and args.json:
        raise InputError("--output: expected a file together with --json, got - (standard output)")
    if args.output not in (None, "-"):
        check_writable(args.output)


def print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, allow_nan=False))


def infeasible(error: InfeasibleError) -> dict[str, Any]:
    """What ``--json`` has where nothing is feasible."""
    return {
        "status": "infeasible",
        "message": str(error),
        error.smallest_key: error.smallest,
        "rank": error.rank,
    }


def finish(
    args: argparse.Namespace, document: dict[str, Any], answer: dict[str, Any], words: str
) -> None:
    """Writes the document, then answers: ``answer`` with ``--json``, else ``words``.

    Without ``-o`` the document goes to standard output and the words to standard error; with
    ``--json`` and without ``-o`` it is not written.
    """
    from pipeloom.ir.files import write_json

    to_stdout = args.output in (None, "-")
    if not (to_stdout and args.json):
        write_json(document, args.output or "-")
    if args.json:
        print_json({"output": args.output, **answer})
        return
    print(words, file=sys.stderr if to_stdout else sys.stdout)
    if not to_stdout:
        print(f"written to {args.output}")


def finish_schedule(
    args: argparse.Namespace,
    schedule: Schedule,
    answer: dict[str, Any] | None = None,
    words: str = "",
) -> None:
    """:func:`finish` for a schedule: its report is the answer, then ``answer`` and ``words``."""
    from pipeloom.ir.files import dump_schedule
    from pipeloom.report import facts

    document = dump_schedule(schedule)
    lines = "\n\n".join(part for part in (facts(schedule), words) if part)
    finish(args, document, describe(document) | (answer or {}), lines)


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """A schedule without its order: its size, limit and report."""
    keys = ("passing", "ranks", "stages", "microbatches", "memory_limit")
    return {
        "name": document["profile"]["name"],
        **{key: document[key] for key in keys},
        **document["report"],
    }


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns aligned by their widest cell, the first and the last to the left, the others to the right.

    Words in the last that would go beyond ``WIDEST`` go on in the next line.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    last = len(header) - 1
    before = sum(widths[:last]) + 2 * last
    widths[last] = min(widths[last], max(WIDEST - before, LEAST_WORDS))

    def line(cells: list[str]) -> str:
        words = _wrapped(cells[last], widths[last])
        aligned = [
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip([*cells[:last], words[0]], widths, strict=True))
        ]
        return "\n".join(
            ["  ".join(aligned).rstrip(), *(" " * before + more for more in words[1:])]
        )

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def _wrapped(words: str, width: int) -> list[str]:
    if len(words) <= width:
        return [words]
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
