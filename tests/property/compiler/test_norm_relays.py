"""Any schedule of activations can relay its norms, and what ran before the verdict can run
again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.passes.deadlock_check import prove
from pipeloom.ir.formats.program_json import dump_program
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import (
    Compute,
    Instruction,
    Receive,
    Relay,
    RelayKind,
    Send,
    Tensor,
    WaitReceive,
    WaitSend,
)
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.program import verify_program
from tests.support.machine import Machine
from tests.support.random_schedules import schedules

Row = tuple[Instruction, ...]
FORGOTTEN = 1000  # added to the microbatch of what a first attempt sends


def cut(row: Row) -> tuple[Row, Row]:
    """What comes before the verdict, and what comes after it."""
    at = next(
        (i for i, x in enumerate(row) if isinstance(x, Relay) and x.kind is RelayKind.VERDICT), None
    )
    return ((), row) if at is None else (row[:at], row[at + 1 :])


@given(schedules(), st.integers(0, 2**32))
def test_relays_keep_what_holds_of_programs(schedule: Schedule, seed: int) -> None:
    program = compile_schedule(schedule, post_validation=True)
    assert verify_program(dump_program(program)) == []
    machine = Machine(program)
    machine.run(Random(seed))
    assert not any(machine.content), "buffers left taken"
    plain = compile_schedule(schedule)
    assert program.buffers == plain.buffers
    for row, before in zip(program.instructions, plain.instructions, strict=True):
        rest = [item for item in row if not isinstance(item, Relay)]
        assert sorted(map(str, rest)) == sorted(map(str, before))


@given(schedules())
def test_as_many_forwards_as_can_be_come_before_the_verdict(schedule: Schedule) -> None:
    rows = compile_schedule(schedule, post_validation=True).instructions
    heads = [cut(row)[0] for row in rows]
    ran = {item.op for head in heads for item in head if isinstance(item, Compute)}
    for row, head in zip(rows, heads, strict=True):
        relays = [item for item in row if isinstance(item, Relay)]
        rest = [item.op for item in row[len(head) :] if isinstance(item, Compute)]
        if not relays or relays[0].source is None or not rest:
            continue
        op = rest[0]
        fed = op.stage == 0 or replace(op, stage=op.stage - 1) in ran
        assert op.kind is not OpKind.F or not fed


@given(schedules())
def test_what_is_run_again_meets_nothing_of_the_first_time(schedule: Schedule) -> None:
    """All that happens where a step was wrong, as one program: no deadlock, channels in order."""
    program = compile_schedule(schedule, post_validation=True)
    heads = [cut(row)[0] for row in program.instructions]
    sent = {item.tensor for head in heads for item in head if isinstance(item, Send)}
    prove(replace(program, instructions=tuple(_twice(row, sent) for row in program.instructions)))


def _twice(row: Row, sent: set[Tensor]) -> Row:
    """The head, the verdict, an end to all that is under way, and the row without a verdict."""
    head, rest = cut(row)
    verdict = row[len(head) : len(row) - len(rest)]
    stale = [item for item in rest if isinstance(item, Receive) and item.tensor in sent]
    first = [_forgotten(item) for item in (*head, *verdict, *stale)]
    return (*first, *_open([*head, *stale]), *head, *rest)


def _open(items: list[Instruction]) -> list[Instruction]:
    """Waits for all that was posted and not waited for."""
    waited = {
        (type(item), item.tensor) for item in items if isinstance(item, WaitSend | WaitReceive)
    }
    waits: list[Instruction] = []
    for item in items:
        if isinstance(item, Send | Receive):
            wait = (WaitSend if isinstance(item, Send) else WaitReceive)(item.tensor)
            if (type(wait), item.tensor) not in waited:
                waits.append(_forgotten(wait))
    return waits


def _forgotten(item: Instruction) -> Instruction:
    if isinstance(item, Send | Receive | WaitSend | WaitReceive):
        tensor = item.tensor
        return replace(item, tensor=Tensor(tensor.kind, tensor.stage, tensor.index + FORGOTTEN))
    return item
