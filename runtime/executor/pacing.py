"""Stretches ops to their times in the program's profile, to emulate devices of that speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import Op, pack

from ..measure.op_timer import Call
from ..rank.context import RankContext


def paced(context: RankContext) -> Callable[[Call, Op], Call]:
    """Returns a function that stretches the call of an op to the op's time in the profile.

    It takes the call and the op, and returns a call that runs the op and then sleeps until that
    time has passed. Calls of O and L, and all calls without the option ``pace``, are returned
    unchanged.
    """
    if not context.options.pace:
        return lambda run, op: run
    costs = Costs.of(context.program.schedule.problem)

    def stretched(run: Call, op: Op) -> Call:
        if op.kind.copies:
            return run
        return partial(_stretched, run, float(costs.of_ops(pack([op]))[0]) / 1e3)

    return stretched


def _stretched(run: Call, seconds: float) -> None:
    """Calls ``run``, then sleeps until ``seconds`` have passed since the call's start."""
    end = time.perf_counter() + seconds
    run()
    time.sleep(max(0.0, end - time.perf_counter()))
