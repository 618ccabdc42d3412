"""``compile``: from a schedule to a program, the list of instructions of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeloom.compiler import compile_schedule
from pipeloom.ir.documents.json_reader import is_count
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.ir.verify.schedule import verify_schedule

from .inputs.documents import Planned, naming, read_document, read_schedule
from .requests.fields import takes
from .requests.files import CompileRequest
from .solving.progress import Note, unheard

MOST_VIOLATIONS = 3


@takes(CompileRequest)
def compile(request: CompileRequest) -> Program:  # noqa: A001 - what the command is called
    """Compile a schedule, given as an object, a JSON object or a file, to a program.

    The arguments are the fields of :class:`.CompileRequest`. ``progress`` receives notes. Raises
    InputError for invalid input, and InvalidScheduleError for a schedule that deadlocks, or for a
    file or JSON object in which :func:`.verify.verify` finds violations.
    """
    for i, group in enumerate(request.tied):
        if not isinstance(group, Sequence) or not all(map(is_count, group)):
            raise InputError(f"tied[{i}]: expected stages, such as [0, 3], got {group!r}")
    document = None
    if isinstance(request.schedule, Schedule | Planned):
        found, where = read_schedule(request.schedule)
    else:
        document, where = read_document(request.schedule, "schedule")
        found, where = read_schedule(document, where=where)
    with naming(where, "tied", "post_validation"):
        program = compile_schedule(
            found,
            tied=request.tied,
            post_validation=request.post_validation,
            data_parallel=request.data_parallel,
        )
        if document is not None:
            _refuse_invalid(verify_schedule(document))
    replicas = found.problem.profile.data_parallel
    if replicas is not None and replicas.size > 1 and not request.data_parallel:
        planned = f"planned for {counted(replicas.size, 'replica')} (data_parallel)"
        line = "without --data-parallel the program does not average their gradients"
        (request.progress or unheard)(Note(f"note: {where}: {planned}; {line}"))
    return program


def _refuse_invalid(violations: Sequence[str]) -> None:
    more = len(violations) - MOST_VIOLATIONS
    end = [f"and {more} more: pipeloom verify names all"] if more > 0 else []
    if violations:
        raise InvalidScheduleError([*violations[:MOST_VIOLATIONS], *end])


def program_facts(program: Program) -> dict[str, Any]:
    """Return the object that ``compile --json`` prints: the number of ranks, and for each rank its
    number of instructions and of buffers."""
    return {
        "ranks": len(program.instructions),
        "instructions": [len(instructions) for instructions in program.instructions],
        "buffers": [len(names) for names in program.buffers],
    }
