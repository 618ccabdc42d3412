"""Checks of a program and its options before a pipeline is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.formats import dump_program
from pipeloom.ir.formats.json_reader import is_count
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule, Updates, refuse_where_stale
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


def checked_count(microbatches: int) -> int:
    """The number. Raises InputError where it is none of microbatches."""
    if not is_count(microbatches) or microbatches < 1:
        raise InputError(f"microbatches: expected a number of at least 1, got {microbatches!r}")
    return microbatches


def check_exchange(program: Program, other: Program) -> None:
    """Raises InputError, alike on all ranks, which have the same programs, where stages that train
    by ``program`` cannot by the ``other``, too."""
    for line in _unlike(program, other):
        raise agreed(InputError(f"program: expected {line}"))


def _unlike(program: Program, other: Program) -> Iterator[str]:
    """A line for each property that ``other`` must share with ``program`` and does not."""
    sent, new = (_sent(p.schedule) for p in (program, other))
    if sent != new:
        yield f"one that sends {sent}, as the pipeline's, not {new}"
    if {p.schedule.updates for p in (program, other)} != {Updates.ITERATION}:
        yield "one that steps once an iteration, got one that steps after each microbatch"
    homes, others = holders(program.schedule), holders(other.schedule)
    if homes != others:
        yield (
            f"its stages on ranks {list(map(list, homes))}, where the pipeline has them, got "
            f"{list(map(list, others))}"
        )
    for rank in range(program.schedule.problem.ranks):
        known, needed = (RankRole.of(p, rank).needed for p in (program, other))
        if not set(needed) <= set(known):
            yield (
                f"stages {list(known)} alone on rank {rank}, which the pipeline was given there, "
                f"got {list(needed)}"
            )


def _sent(schedule: Schedule) -> str:
    return "weights" if schedule.transfers else "activations"
