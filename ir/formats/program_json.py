"""Reads and writes programs as JSON. All faults of a file are reported together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from ..documents import Document
from ..documents.json_reader import read_document
from ..documents.validation import validated
from ..model import program as ir
from ..model.ops import Op
from ..model.program import Program
from .schedule_document import PROGRAM, ProgramDocument
from .schedule_json import dump_schedule, schedule_of


def load_program(given: Document) -> Program:
    """Return the program in ``given``: the path of a file, or an object from :func:`dump_program`.

    Raises InputError with every fault of the file.
    """
    return parse_program(*read_document(given, "program"))


def parse_program(data: dict[str, Any], where: str) -> Program:
    document = validated(ProgramDocument, data, where)
    schedule = schedule_of(document.schedule, f"{where}: schedule")
    with _collector_paused():
        rows = tuple(tuple(map(parse_instruction, row)) for row in document.instructions)
    return Program(schedule, rows, tuple(tuple(map(_buffer, row)) for row in document.buffers))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Context manager: pause Python's garbage collection of cycles.

    Instructions form no cycles, and the collection took 70 % of the time to read a program.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def parse_instruction(text: str) -> ir.Instruction:
    """The instruction with this text, whose form must be valid (as checked by ProgramDocument)."""
    words = text.split(" ")
    make = _MAKE.get(words[0])
    return ir.Compute(Op.parse(text)) if make is None else make(words)


@lru_cache(1024)
def _tensor(text: str) -> ir.Tensor:
    """The tensor with this text, such as ``x1.0``; cached, so that instructions share objects."""
    item, index = text.split(".")
    kind = item.rstrip("0123456789")
    return ir.Tensor(ir.TensorKind(kind), int(item[len(kind) :]), int(index))


def _wait(words: list[str]) -> ir.Instruction:
    return (ir.WaitReceive if words[1] == "recv" else ir.WaitSend)(_tensor(words[2]))


def _relay(words: list[str]) -> ir.Instruction:
    ends = {word: int(rank) for word, rank in zip(words[2::2], words[3::2], strict=True)}
    return ir.Relay(ir.RelayKind(words[1]), ends.get("from"), ends.get("to"))


_MAKE: dict[str, Callable[[list[str]], ir.Instruction]] = {
    "recv": lambda words: ir.Receive(_tensor(words[1]), int(words[3]), int(words[5])),
    "send": lambda words: ir.Send(_tensor(words[1]), int(words[3])),
    "wait": _wait,
    "free": lambda words: ir.Free(_tensor(words[1])),
    "reduce": lambda words: ir.Reduce(tuple(map(int, words[1:]))),
    "average": lambda words: ir.Average(int(words[1])),
    "step": lambda words: ir.Step(int(words[1])),
    "relay": _relay,
}


def _buffer(text: str) -> ir.Buffer:
    kind = text.rstrip("0123456789")
    return ir.Buffer(ir.TensorKind(kind), int(text[len(kind) :]))


def dump_program(program: Program) -> dict[str, Any]:
    """The program as a JSON object, from which :func:`parse_program` returns the program."""
    return {
        "format": PROGRAM,
        "version": 1,
        "schedule": dump_schedule(program.schedule),
        "instructions": [list(map(str, row)) for row in program.instructions],
        "buffers": [list(map(str, row)) for row in program.buffers],
    }
