"""Why a run took longer than its plan, in one line."""

from __future__ import annotations

import os
import statistics
import sys

from pipeloom.ir.schedule import Schedule
from pipeloom.ir.simulate import simulate

FAR = 1.5  # times the plan: less is the usual noise of times on shared machines
SHORT = 1.0  # milliseconds; the host's own work between ops is of the order of a tenth of that


def why_late(planned: Schedule, measured: Schedule) -> str | None:
    """One line where the measured makespan is far above the planned one, else None.

    Called in a process of the run: its machine's cores and ranks are the ones that are named.
    """
    plan = (planned.timing or simulate(planned)).makespan
    if measured.timing is None or plan <= 0 or measured.timing.makespan < FAR * plan:
        return None
    ratio = measured.timing.makespan / plan
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", planned.problem.ranks))
    reason = _reason(ranks, _cores(), _median_op(planned))
    return f"{ratio:.1f}x the planned makespan: {reason}; see docs/profiling.md"


def _reason(ranks: int, cores: int, op: float) -> str:
    reasons = []
    if ranks > cores:
        reasons.append(f"{ranks} ranks share {cores} core{'s' * (cores > 1)}")
    if op < SHORT:
        reasons.append(f"ops are short, {op:.2g} ms in the median")
    return ", ".join(reasons) or "the profile may be of another model or machine"


def _median_op(schedule: Schedule) -> float:
    stages = schedule.problem.profile.stages
    return statistics.median(t for stage in stages for t in (stage.t_f, stage.t_b, stage.t_w))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
