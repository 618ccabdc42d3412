"""Black-box checks of what every command promises."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import BinaryIO
from xml.etree import ElementTree

from pipeloom.ir import printable
from tests.support.inner import main

from .cases import Case

MOST_CHARACTERS = 400  # of a message that is printed
LONGEST = MOST_CHARACTERS + len("pipeloom: ") + len(" (9999999 more characters)")
PNG = b"\x89PNG"
RAW = ("Cc", "Cs", "Zl", "Zp")
OF_AN_OPTION = re.compile(r"(argument )?(-|COMMAND|FILE|the following arguments|unrecognized)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """An exit code, and one line per broken promise."""

    code: int
    faults: tuple[str, ...]


def check(case: Case) -> Outcome:
    """Run the case in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), beneath() as raw:
        code = main(list(case.words))
        lost = out.closed or err.closed or (sys.stdout, sys.stderr) != (out, err)
        found = [*_by_libraries(raw), *(["a standard stream is lost to the next cases"] * lost)]
    answer, told = map(_written, (out, err))
    faults = [*found, *_faults(case, code, answer, told)]
    return Outcome(code, tuple(faults))


def _written(stream: io.TextIOWrapper) -> str:
    if stream.closed:
        return ""
    stream.flush()
    written: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return "" if written.startswith(PNG) else written.decode()


@contextmanager
def beneath() -> Iterator[BinaryIO]:
    """Yields a file with everything that C libraries write to descriptors 1 and 2, bypassing
    Python's streams."""
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield file
        finally:
            for descriptor, own in zip((1, 2), kept, strict=True):
                os.dup2(own, descriptor)
                os.close(own)


def _by_libraries(raw: BinaryIO) -> Iterator[str]:
    raw.seek(0)
    if text := raw.read().decode(errors="replace"):
        yield f"a library writes to the terminal: {text[:300]!a}"


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
        told = [x for x in lines if x.startswith("pipeloom: ") or not out]  # else in ``out``
        yield from (f"no file is named: {x[:300]!a}" for x in told if not _names_its_file(case, x))
        places = Counter(x.partition(": expected ")[0] for x in told if not x.endswith("it twice"))
        yield from (f"told {n} times: {x[:300]!a}" for x, n in places.items() if n > 1)
    if "--json" in case.words:
        yield from _not_one_object(out)
    if code == 0 and "svg" in case.words:
        yield from _no_xml(out)


def _names_its_file(case: Case, line: str) -> bool:
    words = line.removeprefix("pipeloom: ")
    given = [printable(word.rpartition("=")[2])[:MOST_CHARACTERS] for word in case.words]
    return words != line and (
        words.startswith(("note: ", "and ", "compiling kernels"))
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
