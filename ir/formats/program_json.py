"""Programs as JSON: reading with every error of the file at once, and writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import InputError
from ..model.program import Buffer, Program, TensorKind, parse_instruction
from .documents import PROGRAM, ProgramDocument
from .json_reader import read_json
from .schedule_json import dump_schedule, schedule_of
from .validation import validated

T = TypeVar("T")


def load_program(path: str) -> Program:
    """Reads a program. Raises InputError with every error of the file."""
    return parse_program(read_json(path), path)


def parse_program(data: dict[str, Any], where: str) -> Program:
    document = validated(ProgramDocument, data, where)
    schedule = schedule_of(document.schedule, f"{where}: schedule")
    wrong: list[str] = []
    rows = _parsed(document.instructions, parse_instruction, f"{where}: instructions", wrong)
    buffers = _parsed(document.buffers, _buffer, f"{where}: buffers", wrong)
    if wrong:
        raise InputError(*wrong)
    return Program(schedule, rows, buffers)


def _parsed(
    lists: list[list[str]], parse: Callable[[str], T], where: str, wrong: list[str]
) -> tuple[tuple[T, ...], ...]:
    rows = []
    for rank, texts in enumerate(lists):
        row = []
        for i, text in enumerate(texts):
            try:
                row.append(parse(text))
            except ValueError as error:
                wrong.append(f"{where}[{rank}][{i}]: {error}")
        rows.append(tuple(row))
    return tuple(rows)


def _buffer(text: str) -> Buffer:
    kind = text.rstrip("0123456789")
    if kind not in {k.value for k in TensorKind} or kind == text:
        raise ValueError(f"not a buffer: {text!r} (expected e.g. x1, dy1, w1 or dw1)")
    return Buffer(TensorKind(kind), int(text[len(kind) :]))


def dump_program(program: Program) -> dict[str, Any]:
    """The program as a JSON object."""
    return {
        "format": PROGRAM,
        "version": 1,
        "schedule": dump_schedule(program.schedule),
        "instructions": [list(map(str, row)) for row in program.instructions],
        "buffers": [list(map(str, row)) for row in program.buffers],
    }
