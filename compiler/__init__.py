"""From a schedule to a program: who computes what, when, becomes what each rank does in turn.

A pass is a function from a valid program to a valid program; the passes of each kind of schedule
are a literal list in :data:`PASSES`. **To add a kind of schedule**: write its passes, one file each
in ``passes/``, list them in a function like :func:`activation_passes` and name that function in the
table. A pass that places messages of activations posts every receive at the start of its rank (a
buffer for each message, in the order of the sender's sends), puts each send after what makes its
tensor, waits before what needs it and frees after the last use; ``wait_sends`` and
``PostReceives`` then refine the program. What travels by a schedule's transfers is placed as those
say. ``share_buffers`` serves any program, and ``prove`` rejects what could deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.problem import Passing
from pipeloom.ir.program import Program
from pipeloom.ir.schedule import Schedule

from .passes.buffers import share_buffers
from .passes.compute import compute
from .passes.free import free_received
from .passes.free_travelled import free_travelled
from .passes.messages import place_messages
from .passes.prove import prove
from .passes.receives import PostReceives
from .passes.reduce import Groups, ReduceTied, tied_groups
from .passes.sends import wait_sends
from .passes.step import step_stages
from .passes.transfers import place_transfers

Pass: TypeAlias = Callable[[Program], Program]


def activation_passes(tied: Groups) -> tuple[Pass, ...]:
    """Stages stay where they are; activations and their gradients travel."""
    return (
        place_messages,
        free_received,
        ReduceTied(tied),
        step_stages,
        wait_sends,
        PostReceives(),
        share_buffers,
    )


def weight_passes(tied: Groups) -> tuple[Pass, ...]:
    """Microbatches stay where they are; weights and their gradients travel."""
    return (place_transfers, ReduceTied(tied), step_stages, free_travelled, share_buffers)


PASSES: dict[Passing, Callable[[Groups], tuple[Pass, ...]]] = {
    Passing.ACTIVATIONS: activation_passes,
    Passing.WEIGHTS: weight_passes,
}


def compile_schedule(schedule: Schedule, *, tied: Sequence[Sequence[int]] = ()) -> Program:
    """The program that runs ``schedule``, proven free of deadlock; it keeps the planned times.

    ``tied``: groups of stages that share parameters, whose gradients are summed before the step.
    Raises InvalidScheduleError where the schedule is incomplete or can never run, InputError
    where a tied group names stages that do not exist or no passes lower this kind of schedule.
    """
    passing = schedule.problem.placement.passing
    if passing not in PASSES:
        known = " or ".join(kind.value for kind in PASSES)
        raise InputError(f"schedule: passing: expected {known}, got {passing.value}")
    program = compute(schedule)
    for lower in PASSES[passing](tied_groups(tied, schedule.problem.stages)):
        program = lower(program)
    prove(program)
    return program
