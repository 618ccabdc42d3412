"""Ranks of a GPT on one GPU: planned against measured, schedule by schedule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.report.attribution import attribute

from .plans import (
    CHUNKS,
    NAMES,
    held_at_most,
    milliseconds,
    on_measured_times,
    planned,
    profile,
)
from .running import Steps, run_steps
from .sizes import Size
from .telling import Tell, guarded


def measure_ranks(size: Size, ranks: int, device: str, tell: Tell) -> None:
    """Tells the profiles, and a row for each schedule."""
    profiles: dict[int, Profile] = {}
    for chunks in sorted({CHUNKS.get(name, 1) for name in NAMES}):
        with guarded(tell, f"profile of {chunks} a rank"):
            measurement = profile(size, ranks, chunks, device)
            profiles[chunks] = measurement.profile
            tell(f"profile of {chunks} a rank", measurement.record())
    for name in NAMES:
        with guarded(tell, name):
            schedule = planned(size, name, profiles[CHUNKS.get(name, 1)])
            steps = _run(size, schedule, device)
            tell(name, row(schedule, steps))
            if name == "1f1b":
                with guarded(tell, "tuned"):
                    tell("tuned", _tuned(size, schedule, steps, device))


def _run(size: Size, schedule: Schedule, device: str) -> Steps:
    program = compile_schedule(schedule)
    return run_steps(program, size.model, size.warmup, size.steps, device)


def row(schedule: Schedule, steps: Steps) -> dict[str, Any]:
    """``host``: the largest share of a step that a rank idles with all inputs there."""
    measured = steps.median
    told = attribute(schedule, measured)
    plan = [rank.planned_peak for rank in told.ranks]
    own = milliseconds(on_measured_times(schedule, steps.traces))
    return {
        "ranks": schedule.problem.ranks,
        "microbatches": schedule.problem.microbatches,
        "planned_ms": milliseconds(schedule),
        "measured_ms": steps.milliseconds,
        "planned_on_own_times_ms": own,
        "step_ms": [1e3 * seconds for seconds in steps.seconds],
        "host": max(rank.host for rank in told.ranks) / told.measured,
        "causes_ms": asdict(told.causes) | {"slack": told.slack},
        "planned_peak": plan,
        "peak": list(steps.peaks),
        "planned_held": held_at_most(schedule),
        "allocated": steps.allocated,
        "losses": list(steps.losses),
    }


def _tuned(size: Size, first: Schedule, steps: Steps, device: str) -> dict[str, Any]:
    """Planned anew on the times of 1F1B's own steps."""
    before = on_measured_times(first, steps.traces)
    tuned = planned(size, "zb-2p", before.problem.profile)
    found = row(tuned, _run(size, tuned, device))
    plan = milliseconds(before)
    return found | {
        "planned_gain": 1 - found["planned_ms"] / plan,
        "measured_gain": 1 - found["measured_ms"] / steps.milliseconds,
    }
