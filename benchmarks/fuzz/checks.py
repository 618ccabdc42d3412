"""Checks from outside of the promises that every command makes."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from xml.etree import ElementTree

from pipeloom.cli.failures import MOST_CHARACTERS
from pipeloom.cli.main import main
from pipeloom.ir.errors import printable

from .cases import Case

LONGEST = MOST_CHARACTERS + len("pipeloom: ") + len(" (9999999 more characters)")
RAW = ("Cc", "Cs", "Zl", "Zp")
OF_AN_OPTION = re.compile(r"(argument )?(-|COMMAND|FILE|the following arguments|unrecognized)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """An exit code, what went to standard output and error, and a line for each broken promise."""

    code: int
    out: str
    err: str
    faults: tuple[str, ...]


def check(case: Case) -> Outcome:
    """Runs the case in this process."""
    with captured() as (out, err):
        code = main(list(case.words))
        sys.stdout.flush()
        sys.stderr.flush()
        told, answer = err.getvalue().decode(), out.getvalue().decode()
    return Outcome(code, answer, told, tuple(_faults(case, code, answer, told)))


@contextmanager
def captured() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Standard output and standard error of the meantime."""
    before, out, err = (sys.stdout, sys.stderr), io.BytesIO(), io.BytesIO()
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8")
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8")
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = before


def _faults(case: Case, code: int, out: str, err: str) -> Iterator[str]:
    if code not in (0, 1, 2):
        yield f"exit code {code}: {err[-300:]!a}"
        return
    lines = err.splitlines()
    for line in lines:
        if line.startswith("pipeloom: ") and len(line) > LONGEST:
            yield f"a line of {len(line)} characters: {line[:300]!a}"
    for stream, text in (("error", err), ("output", out)):
        raw = next((c for c in text if c != "\n" and unicodedata.category(c) in RAW), None)
        if raw is not None:
            at = text.index(raw)
            yield f"standard {stream} has a raw {raw!a}: {text[max(0, at - 60) : at + 60]!a}"
    if code == 2:
        yield from (f"no file is named: {x[:300]!a}" for x in lines if not _names_its_file(case, x))
    if "--json" in case.words:
        yield from _not_one_object(out)
    if code == 0 and "svg" in case.words:
        yield from _no_xml(out)


def _names_its_file(case: Case, line: str) -> bool:
    words = line.removeprefix("pipeloom: ")
    given = [printable(word.rpartition("=")[2])[:MOST_CHARACTERS] for word in case.words]
    return words != line and (
        words.startswith(("note: ", "and "))
        or any(word in words for word in given if word)
        or bool(OF_AN_OPTION.match(words))
    )


def _not_one_object(out: str) -> Iterator[str]:
    try:
        if not isinstance(json.loads(out), dict):
            yield f"--json gives no object: {out[:200]!a}"
    except ValueError:
        yield f"--json gives no JSON: {out[:200]!a}"


def _no_xml(out: str) -> Iterator[str]:
    try:
        ElementTree.fromstring(out)
    except ElementTree.ParseError as error:
        yield f"no SVG that can be read: {error}"
