"""Texts that describe an instruction to users: in profiler traces, and in errors if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError, PipeloomError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.units import counted

from ..dtensors import parts
from ..errors import ChangedInPlaceError, ExecutionError, advice
from ..measure.op_timer import Call

if TYPE_CHECKING:
    from .executor import Executor
    from .stage_runner import StageRunner

SENDS, RECEIVES = (ir.Send, ir.WaitSend), (ir.Receive, ir.WaitReceive)


def under_texts(
    row: Sequence[ir.Instruction], prepared: Sequence[Sequence[Call]], label: str
) -> tuple[list[Call], list[int]]:
    """Returns one call per instruction of a rank's ``row``, and the positions of these, 0, 1, ...

    Each call runs the ``prepared`` calls of its instruction, and torch's profiler records it under
    the instruction's text, prefixed by ``label``.
    """
    pairs = zip(row, prepared, strict=True)
    return [partial(_under, f"{label}{x}", calls) for x, calls in pairs], [*range(len(row))]


def _under(name: str, calls: Sequence[Call]) -> None:
    with torch.profiler.record_function(name):
        for call in calls:
            call()


def failed(executor: Executor, position: int, error: Exception) -> PipeloomError:
    """Returns the error to raise if the instruction at ``position`` has raised ``error``.

    It is an InputError if the user's input is the cause, otherwise an ExecutionError.
    """
    row = executor.row
    item, peer = row[position], _peer(row, row[position])
    where = (
        f"rank {executor.rank}: instruction {position} of {len(row)} "
        f"({_place(executor, position)}), "
        f"{str(item)!r}{'' if peer is None else f', peer rank {peer}'}"
    )
    if isinstance(error, ChangedInPlaceError) and isinstance(item, ir.Compute):
        text = _changed(executor.runners[item.op.stage], item.op.kind, error)
        return InputError(f"{where}: {text}")
    if isinstance(error, InputError):
        return InputError(f"{where}: {error}")
    return ExecutionError(f"{where}: {type(error).__name__}: {error}{advice(error)}")


def _place(executor: Executor, position: int) -> str:
    """Returns a text that locates a position in the rank's instructions, such as "op 3 of 8".

    Ops are numbered from 0. If another instruction is at the position, the text names the op that
    follows, or says that it is after the last op.
    """
    done = sum(isinstance(i, ir.Compute) for i in executor.row[:position])
    if done == len(executor.ops):
        return f"after the last of {counted(done, 'op')}"
    place = f"op {done} of {len(executor.ops)}"
    computes = isinstance(executor.row[position], ir.Compute)
    return place if computes else f"before {place}, {executor.ops[done]}"


def _peer(row: Sequence[ir.Instruction], instruction: ir.Instruction) -> int | None:
    """Returns the rank with which ``instruction`` exchanges a message; None if there is none.

    For a wait, this is the other rank of the send or receive in ``row`` that it waits for; for a
    relay, the rank from which the relayed value comes.
    """
    if isinstance(instruction, ir.Relay):
        return instruction.source
    at, tensor = type(instruction), getattr(instruction, "tensor", None)
    for other in row:
        if isinstance(other, ir.Send) and other.tensor == tensor and at in SENDS:
            return other.target
        if isinstance(other, ir.Receive) and other.tensor == tensor and at in RECEIVES:
            return other.source
    return None


def _changed(runner: StageRunner, kind: OpKind, error: ChangedInPlaceError) -> str:
    """Returns the text of ``error``, extended by the stage, the kind of op and the tensor's name.

    The name is left out if the tensor is neither a parameter nor a buffer of the stage.
    """
    storages = _storages_of(error.tensor)
    own = (*runner.module.named_parameters(), *runner.module.named_buffers())
    names = [f"{name} " for name, tensor in own if storages & _storages_of(tensor)]
    return f"stage {runner.stage}, {kind.name}: {''.join(names[:1])}{error}"


def _storages_of(tensor: Tensor) -> set[int]:
    return {part.untyped_storage()._cdata for part in parts(tensor)}
