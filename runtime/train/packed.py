"""Runs of packed microbatches: of each step the sequences that the program was planned for.

The program's profile says what ``pack`` made its microbatches of; the model source gives them, as
to ``tune``, by ``lengths`` and ``packed``.
"""

from __future__ import annotations

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.packed_batch import PackedBatch
from pipeloom.ir.model.program import Program

from ..pipeline.model_source import PACKED, ModelSource, check_lengths, checked_batch, has_lengths
from .loop import USUAL, StepPlan


def packing_of(program: Program) -> PackedBatch | None:
    """The batch of which the program's microbatches are packed, if they are."""
    return program.schedule.problem.profile.packing


def plan_of(program: Program) -> StepPlan:
    """The plan of each step: by the program, with the sequences that it was planned for."""
    packing = packing_of(program)
    if packing is None:
        return USUAL
    return StepPlan(None, list(map(list, packing.microbatches)), packing.lengths)


def check_alone(program: Program, replicas: int) -> None:
    """Raises InputError where packed microbatches are not those of all that is trained on."""
    packing = packing_of(program)
    if packing is None or (packing.whole and replicas == 1):
        return
    count = sum(map(len, packing.microbatches))
    raise InputError(
        "schedule: profile: packing: expected a batch packed for one pipeline, got "
        f"{count} of {len(packing.lengths)} sequences for each of several replicas: in a training "
        "script each steps by its own program"
    )


def check_gives(program: Program, source: ModelSource) -> None:
    """Raises InputError where microbatches are packed, and the source knows no sequences."""
    if packing_of(program) is not None and not has_lengths(source):
        raise InputError(
            f"{type(source).__name__}: expected lengths(step) and packed(step, rows), as the "
            "program's microbatches are packed sequences; batch gives others"
        )


def check_source(program: Program, source: ModelSource, steps: int) -> None:
    """Raises InputError where microbatches are packed of other sequences than the source has, in
    the first or the last of so many steps, or it has none."""
    check_gives(program, source)
    if (packing := packing_of(program)) is None:
        return
    for step in sorted({0, steps - 1}):
        check_lengths(source, step, packing.lengths)
    checked_batch(source, 0, list(map(list, packing.microbatches)), PACKED)
