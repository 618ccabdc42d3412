"""Compiles a schedule, the order of ops on each rank, into a program of instructions per rank.

A pass is a function from a program to a program, in the files of ``passes/``; :func:`passes` lists
them in order. The same passes serve all schedules: the placement of the ops and the transfers
determine what each pass adds.
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
    """The passes, in order, that turn a program of computes into a complete one."""
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
    """Compile ``schedule`` into a program with the planned times, proven free of deadlock.

    ``tied``: groups of stages that share parameters, in addition to those in the profile; their
    gradients are summed before the step. ``data_parallel``: average gradients over replicas of the
    pipeline. ``post_validation``: step before the norm of all gradients is known, and again if that
    step was wrong (:mod:`.passes.norm_relay`).

    Raises InvalidScheduleError if the schedule is incomplete or can never run. Raises InputError if
    a tied group names stages that do not exist, if ``post_validation`` is combined with weight
    passing, or if an option or tie needs all gradients at once but updates come after each
    microbatch.
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
