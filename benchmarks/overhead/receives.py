"""How early to post receives: what buffers cost against what late ranks lose, in simulation.

Programs whose receives are posted ``slack`` ops early, against one that posts all of them at the
start, over 50 draws of lognormal op times around the plan.
"""

from __future__ import annotations

from collections import deque
from functools import reduce
from statistics import mean
from typing import Any

import numpy as np

from pipeloom import Profile, StageProfile, build_family
from pipeloom.compiler import passes
from pipeloom.ir import Compute, Op, Program, Receive, Send, Tensor, WaitReceive, WaitSend, timed

RANKS, MICROBATCHES, DRAWS, VARIATION = 8, 24, 50, 0.2
START = 10**6  # more ops early than there are: at the start
SLACKS = (START, 0, 1, 2)


def measured(family: str, t_comm: float) -> dict[str, Any]:
    """Buffers of all ranks and the time lost, by slack."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * RANKS, RANKS, t_comm=t_comm)
    schedule = timed(build_family(family, profile, MICROBATCHES))
    rows = tuple(tuple(map(Compute, schedule.ops(rank))) for rank in range(RANKS))
    start = Program(schedule, rows, ((),) * RANKS)
    programs = [
        reduce(lambda program, lower: lower(program), passes(slack=k), start) for k in SLACKS
    ]
    random = np.random.default_rng(0)
    drawn = [vary(start, random) for _ in range(DRAWS)]
    spans = [mean(makespan(program, times, t_comm) for times in drawn) for program in programs]
    return {
        "family": family,
        "t_comm": t_comm,
        "buffers": [sum(map(len, program.buffers)) for program in programs],
        "lost": [span / spans[0] - 1 for span in spans],
    }


def vary(program: Program, random: np.random.Generator) -> dict[Op, float]:
    """Each op's planned duration times a lognormal factor of mean 1."""
    timing = program.schedule.known_timing
    times: dict[Op, float] = {}
    for rank, (start, end) in enumerate(zip(timing.start, timing.end, strict=True)):
        factor = np.exp(random.normal(-(VARIATION**2) / 2, VARIATION, len(start)))
        times |= zip(program.schedule.ops(rank), ((end - start) * factor).tolist(), strict=True)
    return times


def makespan(program: Program, times: dict[Op, float], t_comm: float) -> float:
    """The time when the last rank is done; a message takes ``t_comm`` once both of its ends are
    posted."""
    rows, now = [deque(row) for row in program.instructions], [0.0] * RANKS
    posted: dict[Tensor, list[float]] = {}
    while any(rows):
        for rank, row in enumerate(rows):
            while row:
                item = row[0]
                if isinstance(item, Compute):
                    now[rank] += times[item.op]
                elif isinstance(item, Send | Receive):
                    posted.setdefault(item.tensor, []).append(now[rank])
                elif isinstance(item, WaitSend | WaitReceive):
                    ends = posted.get(item.tensor, [])
                    if len(ends) < 2:
                        break
                    now[rank] = max(now[rank], max(ends) + t_comm)
                row.popleft()
    return max(now)
