"""Checks of a program and its options before a pipeline is made."""

from __future__ import annotations

from collections.abc import Sequence

from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.formats import dump_program
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Updates, refuse_where_stale
from pipeloom.ir.model.transfers import holders
from pipeloom.ir.verify.program import verify_program

from ..stages.tie_detection import Group, stages_of
from ..transport import agreed
from .options import PipelineOptions
from .role import RankRole


def check_program(program: Program, options: PipelineOptions) -> None:
    """Raises InputError for options that do not go with the program, else what verifying raises."""
    names = ("tied", "param_dtype", "clip_grad_norm", "loss_scale")
    refuse_where_stale(program.schedule, **{name: getattr(options, name) for name in names})
    if not options.verify:
        return
    violations = verify_program(dump_program(program))
    if violations:
        raise InvalidScheduleError(violations)


def check_tied(program: Program, tied: Sequence[Group]) -> None:
    """Raises InputError where stages share a parameter whose gradients the program does not sum."""
    reduced = {i.stages for row in program.instructions for i in row if isinstance(i, ir.Reduce)}
    for group in tied:
        stages = stages_of(group)
        if len(stages) > 1 and not any(set(stages) <= set(summed) for summed in reduced):
            names = " and ".join(f"{name} of stage {stage}" for stage, name in group)
            raise InputError(
                f"tied: {names} are one parameter, whose gradients the program does not sum: "
                f"compile it with --tied {','.join(map(str, stages))}, or of a profile that has "
                "them as tied"
            )


def check_exchange(program: Program, other: Program) -> None:
    """Raises InputError, alike on all ranks, which have the same programs, where stages that train
    by ``program`` cannot by the ``other``, too."""
    own, new = program.schedule, other.schedule
    homes, others = (list(map(list, holders(schedule))) for schedule in (own, new))
    needed = [
        (RankRole.of(program, rank).needed, RankRole.of(other, rank).needed)
        for rank in range(own.problem.ranks)
    ]
    sent = {False: "activations", True: "weights"}
    alike = {
        f"one that sends {sent[bool(own.transfers)]}, as the pipeline's, not "
        f"{sent[bool(new.transfers)]}": bool(own.transfers) == bool(new.transfers),
        "one that steps once an iteration, got one that steps after each microbatch": (
            own.updates is new.updates is Updates.ITERATION
        ),
        f"its stages on ranks {homes}, where the pipeline has them, got {others}": homes == others,
        "only stages on each rank that the pipeline was given there": all(
            set(new_ones) <= set(known) for known, new_ones in needed
        ),
    }
    for wanted, fits in alike.items():
        if not fits:
            raise agreed(InputError(f"program: expected {wanted}"))
