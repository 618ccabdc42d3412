"""From a schedule to a program: who computes what, when, becomes what each rank does in turn.

A pass is a function from a program to a program, in the files of ``passes/``; the list is
:func:`passes`. It is one list for all schedules, whatever is passed: where ops are placed
and what the transfers say decides what each pass finds to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule, refuse_where_stale

from .passes.compute import compute
from .passes.deadlock_check import prove
from .passes.norm_relay import relay_norms
from .passes.optimizer_steps import step_stages
from .passes.place_messages import PlaceMessages, drain_sends
from .passes.receive_buffers import free_received, share_buffers
from .passes.reduce_gradients import Groups, ReduceGradients, average_gradients, tied_groups

Pass: TypeAlias = Callable[[Program], Program]


def passes(tied: Groups = (), slack: int = 1, data_parallel: bool = False) -> tuple[Pass, ...]:
    """The passes that turn bare computes into a whole program, in order."""
    return (
        PlaceMessages(slack),
        ReduceGradients(tied),
        *((average_gradients,) if data_parallel else ()),
        step_stages,
        drain_sends,
        free_received,
        share_buffers,
    )


def compile_schedule(
    schedule: Schedule,
    *,
    tied: Sequence[Sequence[int]] = (),
    data_parallel: bool = False,
    post_validation: bool = False,
) -> Program:
    """The program that runs ``schedule``, proven free of deadlock; it keeps the planned times.

    ``tied``: groups of stages that share parameters, whose gradients are summed before the step,
    beside those that the schedule's profile names. ``data_parallel``: several replicas of the
    pipeline run side by side, and average gradients. ``post_validation``: ranks step before the
    norm of all gradients is known, and again where it then says otherwise
    (:mod:`.passes.norm_relay`). Raises InvalidScheduleError where the schedule is incomplete or can
    never run, InputError where a tied group names stages that do not exist, or weights are passed
    and norms are relayed, or updates come after each microbatch and something waits for all
    gradients.
    """
    refuse_where_stale(
        schedule, tied=tied, data_parallel=data_parallel, post_validation=post_validation
    )
    known = [list(group) for group in schedule.problem.profile.tied]
    refuse_where_stale(schedule, **{"profile: tied": known})
    groups = tied_groups([*tied, *known], schedule.problem.stages)
    program = compute(schedule)
    for lower in passes(groups, data_parallel=data_parallel):
        program = lower(program)
    if post_validation:
        program = relay_norms(program)
    prove(program)
    return program
