"""Compiles a schedule, which orders the ops of each rank, into a program of instructions per rank.

A pass is a function from a program to a program. Each file in ``passes/`` contains one or more, and
:func:`passes` lists those of the middle part in order. All kinds of schedules use the same passes:
what a pass adds follows from the placement of the ops and from the weight transfers.
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
    """The passes, in order, that turn a program that only computes into a complete one.

    ``tied``: groups of stages that share parameters. ``slack``: the number of ops by which receives
    are posted earlier than necessary. ``data_parallel``: whether gradients are averaged over
    replicas of the pipeline.
    """
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
    """Compile ``schedule`` into a program, and prove that the program cannot deadlock.

    ``tied``: groups of stages that share parameters, in addition to those in the profile; the
    gradients of each group are summed before the optimizer step. ``data_parallel``: average
    gradients over replicas of the pipeline. ``post_validation``: run the optimizer step before the
    norm of all gradients is known, and repeat it if the norm shows that it was wrong
    (:mod:`.passes.norm_relay`). The schedule of the returned program has simulated times.

    Raises InvalidScheduleError if the schedule is incomplete or can never run. Raises InputError if
    a tied group names stages that do not exist, if ``post_validation`` is combined with weight
    passing, or if an option or a tied group needs the gradients of all microbatches at the same
    time although the schedule updates the weights after each microbatch.
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
