"""``compile``: from a schedule to a program, what each rank does in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.json_reader import is_count
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted

from .inputs.documents import Document, Planned, naming, read_schedule
from .solving.progress import Listener, Note, unheard


def compile(  # noqa: A001 - what the command is called
    schedule: Schedule | Planned | Document,
    *,
    tied: Sequence[Sequence[int]] = (),
    post_validation: bool = False,
    data_parallel: bool = False,
    progress: Listener | None = None,
) -> Program:
    """The program that runs ``schedule``, an object, a JSON object or a file of one.

    ``tied``: groups of stages that share parameters, whose gradients are summed. With
    ``post_validation`` ranks step before the norm of all gradients is known, with ``data_parallel``
    each stage's gradient is averaged over replicas of the pipeline. ``progress`` is told what is
    worth a note.

    Raises InputError for wrong input, InvalidScheduleError for a schedule that can never run.
    """
    for i, group in enumerate(tied):
        if not isinstance(group, Sequence) or not all(map(is_count, group)):
            raise InputError(f"tied[{i}]: expected stages, such as [0, 3], got {group!r}")
    found, where = read_schedule(schedule)
    with naming(where, "tied", "post_validation"):
        program = compile_schedule(
            found, tied=tied, post_validation=post_validation, data_parallel=data_parallel
        )
    replicas = found.problem.profile.data_parallel
    if replicas is not None and replicas.size > 1 and not data_parallel:
        planned = f"planned for {counted(replicas.size, 'replica')} (data_parallel)"
        line = "without --data-parallel the program does not average their gradients"
        (progress or unheard)(Note(f"note: {where}: {planned}; {line}"))
    return program


def program_facts(program: Program) -> dict[str, Any]:
    """The object that ``compile --json`` prints: ranks; instructions and buffers on each."""
    return {
        "ranks": len(program.instructions),
        "instructions": [len(instructions) for instructions in program.instructions],
        "buffers": [len(names) for names in program.buffers],
    }
