"""Programs as JSON: reading with every error of the file at once, and writing."""

from __future__ import annotations

from typing import Any

from ..model.program import Buffer, Program, TensorKind, parse_instruction
from ..units import counted
from .json_reader import Reader, read_json
from .schedule_json import dump_schedule, parse_schedule

PROGRAM = "pipeloom.program"


def load_program(path: str) -> Program:
    """Reads a program. Raises InputError with every error of the file."""
    return parse_program(read_json(path), path)


def parse_program(data: dict[str, Any], where: str) -> Program:
    errors: list[str] = []
    reader = Reader(data, where, errors)
    reader.format(PROGRAM)
    reader.finish()
    planned = reader.child("schedule")
    reader.finish()
    schedule = parse_schedule(planned.data, planned.where)
    ranks = schedule.problem.ranks
    instructions = [
        _parsed(reader, f"instructions[{r}]", lines, parse_instruction)
        for r, lines in enumerate(_lists(reader, "instructions", ranks))
    ]
    buffers = [
        _parsed(reader, f"buffers[{r}]", names, _buffer)
        for r, names in enumerate(_lists(reader, "buffers", ranks))
    ]
    reader.finish()
    return Program(schedule, tuple(instructions), tuple(buffers))


def _lists(reader: Reader, key: str, ranks: int) -> list[list[Any]]:
    lists = reader.items(key)
    if len(lists) != ranks or not all(isinstance(entry, list) for entry in lists):
        reader.wrong(key, lists, f"{counted(ranks, 'list')}, one a rank")
        return []
    return lists


def _parsed(reader: Reader, key: str, texts: list[Any], parse: Any) -> tuple[Any, ...]:
    parsed = []
    for i, text in enumerate(texts):
        try:
            parsed.append(parse(str(text)))
        except ValueError as error:
            reader.fail(f"{reader.where}: {key}[{i}]: {error}")
    return tuple(parsed)


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
