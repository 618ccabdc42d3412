"""What a pipeline refuses before it is made."""

from __future__ import annotations

from itertools import dropwhile

from pipeloom.ir import program as ir
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.files import dump_program
from pipeloom.ir.program import Program
from pipeloom.ir.staleness import refuse_where_stale
from pipeloom.ir.verify_program import verify_program

from .optimizers import MakeOptimizer


def check_program(program: Program, verify: bool, **options: object) -> None:
    """Raises InputError for options that do not go with the program, InvalidScheduleError for a wrong one."""
    refuse_where_stale(program.schedule, **options)
    if not verify:
        return
    violations = verify_program(dump_program(program))
    if violations:
        raise InvalidScheduleError(violations)


def check_judged(program: Program, most: float | None, optimizer: MakeOptimizer | None) -> None:
    """Raises InputError where nothing can be judged, or too late."""
    name = "loss_scale" if most is None else "clip_grad_norm"
    if most is not None and not most > 0:
        raise InputError(f"clip_grad_norm: expected more than 0, got {most}")
    if optimizer is None:
        raise InputError(f"{name}: expected an optimizer, which steps after it, got None")
    for rank, row in enumerate(program.instructions):
        after = dropwhile(lambda i: not isinstance(i, ir.Step), row)
        early = [i for i in after if not isinstance(i, ir.Step | ir.WaitSend | ir.Free)]
        if early:
            raise InputError(
                f"{name}: expected a program that steps once all else is done, got '{early[0]}' "
                f"after a step on rank {rank}"
            )
