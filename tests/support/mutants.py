"""Edits of documents, written as text, each with the lines that a verifier must print.

A block of edits belongs to the document named by the previous line ``== NAME``. Edits of programs,
such as ``rank 1: 1W0; free x1.0 -> 1W0``, replace lines of a rank that occur once; all refer to the
unchanged rows. Edits of other documents are applied one by one: ``a.0.b = JSON``, ``a.0 + JSON``
(insert before), ``a.0 -`` (delete). Expected lines are indented.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Document = dict[str, Any]


class Mutant(NamedTuple):
    base: str
    edits: tuple[str, ...]
    expected: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.base}: {self.edits[0]}"


def mutants(path: Path) -> list[Mutant]:
    return list(_mutants(path.read_text(encoding="utf-8").strip().split("\n\n")))


def _mutants(blocks: list[str]) -> Iterator[Mutant]:
    base = ""
    for block in blocks:
        lines = block.splitlines()
        if lines[0].startswith("== "):
            base = lines[0].removeprefix("== ")
            continue
        edits = tuple(line for line in lines if not line.startswith(" "))
        yield Mutant(base, edits, tuple(line.strip() for line in lines if line.startswith(" ")))


def edited(document: Document, edits: tuple[str, ...]) -> Document:
    changed = copy.deepcopy(document)
    for edit in edits:
        path, sign, *value = edit.split(" ", 2)
        *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
        inner: Any = changed
        for key in keys:
            inner = inner[key]
        if sign == "-":
            del inner[last]
        elif sign == "+":
            inner.insert(last, json.loads(value[0]))
        else:
            assert sign == "="
            inner[last] = json.loads(value[0])
    return changed


def edited_program(document: Document, edits: tuple[str, ...]) -> Document:
    changed = copy.deepcopy(document)
    places = []
    for edit in edits:
        where, lines = edit.split(": ", 1)
        kind, rank = where.split()
        separator = "; " if kind == "rank" else " "
        row = document["instructions" if kind == "rank" else "buffers"][int(rank)]
        old, new = (side.strip().split(separator) for side in f"{lines} ".split(" ->", 1))
        (at,) = (i for i in range(len(row)) if row[i : i + len(old)] == old)
        places.append((kind, int(rank), at, len(old), [line for line in new if line]))
    for kind, number, at, length, new in sorted(places, reverse=True):
        changed["instructions" if kind == "rank" else "buffers"][number][at : at + length] = new
    return changed
