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
    """Returns a function that stretches an op's call to its planned time, if pacing is on."""
    if not context.options.pace:
        return lambda run, op: run
    costs = Costs.of(context.program.schedule.problem)

    def stretched(run: Call, op: Op) -> Call:
        if op.kind.copies:
            return run
        return partial(_stretched, run, float(costs.of_ops(pack([op]))[0]) / 1e3)

    return stretched


def _stretched(run: Call, seconds: float) -> None:
    """Calls ``run``, then sleeps until ``seconds`` after its start."""
    end = time.perf_counter() + seconds
    run()
    time.sleep(max(0.0, end - time.perf_counter()))
