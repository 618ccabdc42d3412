"""The published rule for interleaved 1F1B: each group of microbatches waits once per chunk.

The interleaved column of the paper's tables comes from a replay with a special rule: between one
chunk and the next (from rank P-1 to rank 0 in the forward, 0 to P-1 in the backward), only the
first microbatch of each group of P microbatches waits for its input; the inputs of the others are
assumed to be available. In a real run, as in the simulator, every microbatch waits. All twelve
published figures agree with the published rule; they are lower than a real run can reach. The
simulator does not have this rule, so this module replays it for that column.
"""

from __future__ import annotations

import math

from pipeloom import Schedule
from pipeloom.ir import Op, OpKind


def published_makespan(schedule: Schedule) -> float:
    """The makespan in ms of an interleaved schedule under the published rule.

    The profile's ``t_comm`` must be one number for all pairs of ranks.
    """
    problem = schedule.problem
    stages, t_comm = problem.profile.stages, problem.profile.t_comm
    assert isinstance(t_comm, float)
    rows = [schedule.ops(rank) for rank in range(problem.ranks)]
    clock, at = [0.0] * problem.ranks, [0] * problem.ranks
    end: dict[Op, float] = {}
    while any(i < len(row) for i, row in zip(at, rows, strict=True)):
        before = sum(at)
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                op = row[at[rank]]
                came = _input(op, problem.ranks, problem.stages, end) + t_comm
                if came == math.inf:
                    break
                stage = stages[op.stage]
                duration = stage.t_f if op.kind is OpKind.F else stage.t_b + stage.t_w
                clock[rank] = end[op] = max(clock[rank], came) + duration
                at[rank] += 1
        assert sum(at) > before
    return max(clock)


def _input(op: Op, ranks: int, stages: int, end: dict[Op, float]) -> float:
    """The time at which the op that computes the input of ``op`` ends: inf if this time is not yet
    known, -inf if ``op`` does not wait for its input."""
    source = op.stage - 1 if op.kind is OpKind.F else op.stage + 1
    wraps = op.stage % ranks == (0 if op.kind is OpKind.F else ranks - 1)
    if not 0 <= source < stages or (wraps and op.microbatch % ranks):
        return -math.inf
    return end.get(Op(op.kind, source, op.microbatch), math.inf)
