"""Programs as JSON: reading with every error of the file at once, and writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..model.ops import Op, OpKind
from ..model.program import (
    Average,
    Buffer,
    Compute,
    Free,
    Instruction,
    Program,
    Receive,
    Reduce,
    Relay,
    RelayKind,
    Send,
    Step,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
)
from .instruction_text import InstructionText, parse_text
from .json_reader import read_json
from .schedule_document import PROGRAM, ProgramDocument
from .schedule_json import dump_schedule, schedule_of
from .validation import validated


def load_program(path: str) -> Program:
    """Reads a program. Raises InputError with every error of the file."""
    return parse_program(read_json(path), path)


def parse_program(data: dict[str, Any], where: str) -> Program:
    document = validated(ProgramDocument, data, where)
    return Program(
        schedule_of(document.schedule, f"{where}: schedule"),
        tuple(tuple(map(_instruction, row)) for row in document.instructions),
        tuple(
            tuple(Buffer(TensorKind(kind), stage) for kind, stage in row)
            for row in document.buffers
        ),
    )


def parse_instruction(text: str) -> Instruction:
    """The instruction that prints as ``text``. Raises ValueError where there is none."""
    return _instruction(parse_text(text))


_TENSORS = {kind.value: kind for kind in TensorKind}


def _tensor(text: InstructionText) -> Tensor:
    kind, stage, number = text.tensor
    return Tensor(_TENSORS[kind], stage, number)


def _compute(text: InstructionText) -> Compute:
    kind, stage, microbatch = text.op
    return Compute(Op(OpKind[kind], stage, microbatch))


_MAKE: dict[str, Callable[[InstructionText], Instruction]] = {
    "recv": lambda text: Receive(_tensor(text), text.peer, text.buffer),
    "send": lambda text: Send(_tensor(text), text.peer),
    "wait recv": lambda text: WaitReceive(_tensor(text)),
    "wait send": lambda text: WaitSend(_tensor(text)),
    "free": lambda text: Free(_tensor(text)),
    "compute": _compute,
    "reduce": lambda text: Reduce(text.stages),
    "average": lambda text: Average(text.stages[0]),
    "step": lambda text: Step(text.stages[0]),
    "relay sums": lambda text: Relay(RelayKind.SUMS, text.source, text.target),
    "relay verdict": lambda text: Relay(RelayKind.VERDICT, text.source, text.target),
}


def _instruction(text: InstructionText) -> Instruction:
    return _MAKE[text.verb](text)


def dump_program(program: Program) -> dict[str, Any]:
    """The program as a JSON object."""
    return {
        "format": PROGRAM,
        "version": 1,
        "schedule": dump_schedule(program.schedule),
        "instructions": [list(map(str, row)) for row in program.instructions],
        "buffers": [list(map(str, row)) for row in program.buffers],
    }
