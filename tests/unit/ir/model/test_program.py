"""Instructions as text and back."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from pipeloom.ir.formats import schedule_document
from pipeloom.ir.formats.program_json import parse_instruction
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import (
    Compute,
    Free,
    Instruction,
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

X, DW = Tensor(TensorKind.X, 1, 0), Tensor(TensorKind.GRADIENT, 2, 15)


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("recv x1.0 from 0 into 3", Receive(X, 0, 3)),
        ("wait recv x1.0", WaitReceive(X)),
        ("1F0", Compute(Op(OpKind.F, 1, 0))),
        ("1BW12", Compute(Op(OpKind.BW, 1, 12))),
        ("send dw2.15 to 2", Send(DW, 2)),
        ("wait send dw2.15", WaitSend(DW)),
        ("free x1.0", Free(X)),
        ("reduce 0 7", Reduce((0, 7))),
        ("step 1", Step(1)),
        ("relay sums to 1", Relay(RelayKind.SUMS, None, 1)),
        ("relay sums from 1", Relay(RelayKind.SUMS, 1, None)),
        ("relay verdict from 12 to 0", Relay(RelayKind.VERDICT, 12, 0)),
    ],
)
def test_each_form_reads_back(text: str, instruction: Instruction) -> None:
    assert str(instruction) == text
    assert parse_instruction(text) == instruction


@pytest.mark.parametrize(
    "text",
    [
        "",
        "recv x1.0 from 0",
        "send x1 to 0",
        "free z1.0",
        "step",
        "reduce",
        "1G0",
        "step 1 ",
        "relay",
        "relay sums to",
        "relay sum to 1",
    ],
)
def test_what_is_no_instruction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an instruction, such as"):
        TypeAdapter(schedule_document.Instruction).validate_python(text)
