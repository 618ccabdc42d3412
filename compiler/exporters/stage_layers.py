"""The layers of each stage, known for schedules whose stages were cut from a profile by layers."""

from __future__ import annotations

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layers import Layer
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.schedule import Schedule


def check_passing(schedule: Schedule, form: str) -> None:
    """Raise InputError unless the schedule passes only activations.

    Each stage then stays on one rank. ``form``: the name of the export format, for the message.
    """
    passing = schedule.problem.placement.passing
    if passing is not Passing.ACTIVATIONS:
        raise InputError(
            f"schedule: passing: {form} keeps each stage on one rank; got {passing.value}"
        )


def named_parts(schedule: Schedule, form: str) -> list[tuple[Layer, ...]]:
    """The layers of each stage, in order.

    ``form``: the name of the export format, for messages. Raises InputError if stages do not stay
    on one rank, or if their layers are unknown.
    """
    check_passing(schedule, form)
    stages = schedule.problem.profile.stages
    for number, stage in enumerate(stages):
        if not stage.layers:
            raise InputError(
                f"profile: stages[{number}]: layers: missing; expected the layers that it was cut "
                "from, as optimize writes them for a profile by layers"
            )
    return [stage.layers for stage in stages]
