"""Twenty instances, each solved with and without ``--robust`` and judged on the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeloom.ir.cost.spread import LogNormal, sample_steps
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.planner.optimize import optimize

from ..markdown import markdown

WORK = 400.0
"""Millions of simulated ops, for each of the two: about eight seconds."""
SPREADS = (0.05, 0.10)
SEED_OF_INSTANCES = 18
SAMPLES, SEED = 4096, 20_000
"""Samples on which both are judged; no search draws from this seed."""
BETTER, SHARE = 0.01, 1 / 3
TIMES = (30.0, 29.0, 20.0)
"""T_F, T_B and T_W, nearly those of the Zero Bubble paper's 6.2B model."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A profile, its microbatches, and how it was drawn."""

    name: str
    profile: Profile
    microbatches: int


@dataclass(frozen=True, slots=True)
class Case:
    """An instance whose op times have a spread."""

    instance: Instance
    spread: float
    cache: str | None = None
    """The folder in which plain answers are kept: those of both spreads are the same."""


def instances(count: int, seed: int = SEED_OF_INSTANCES) -> list[Instance]:
    """P of 4, 8 or 16; one to three times as many microbatches; memory for one to two times P of
    them; times equal, or up to 20 % apart; messages of 1 to 5 % of an F."""
    return [_instance(seed, number) for number in range(count)]


def _instance(seed: int, number: int) -> Instance:
    rng = np.random.default_rng([seed, number])
    ranks = int(rng.choice([4, 8, 16]))
    microbatches = ranks * int(rng.integers(1, 4))
    room = float(rng.choice([1.0, 1.5, 2.0])) * ranks
    apart = 0.2 * (number % 2)
    times = np.array(TIMES) * (1 + apart * rng.uniform(-1, 1, (ranks, 3)))
    stages = tuple(StageProfile(f, b, w, 1.0, 0.43) for f, b, w in times.tolist())
    delay = TIMES[0] * float(rng.uniform(0.01, 0.05))
    kind = "unequal" if apart else "equal"
    name = f"P={ranks} M={microbatches} limit {room:g} {kind}"
    limits = (room,) * ranks
    return Instance(
        name, Profile(stages, ranks, t_comm=delay, memory_limit=limits, name=name), microbatches
    )


def solved(case: Case) -> dict[str, Any]:
    """Both schedules' mean and 95th percentile, in ms."""
    given = (case.instance.profile, case.instance.microbatches)
    same: dict[str, Any] = {"work_limit": WORK, "cache": case.cache}
    plain = optimize(*given, **same)
    robust = optimize(*given, **same, robust="mean", spread=case.spread)
    before, after = (_costs(each.schedule, case.spread) for each in (plain, robust))
    saved = before - after
    return {
        "instance": case.instance.name,
        "spread": case.spread,
        "bound": plain.lower_bound,
        "planned": [plain.cost, robust.cost],
        "mean": [float(before.mean()), float(after.mean())],
        "p95": [float(np.quantile(each, 0.95)) for each in (before, after)],
        "gain": float(saved.mean() / before.mean()),
        "error": float(saved.std() / np.sqrt(len(saved)) / before.mean()),
    }


def _costs(schedule: Schedule, by: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    assert verify_schedule(dump_schedule(schedule)) == []
    noise = LogNormal((by,) * schedule.problem.stages)
    return sample_steps(schedule, noise, samples=SAMPLES, seed=SEED).costs


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each case."""
    head = ["instance", "spread", "plain: planned", "mean", "robust: planned", "mean", "gain"]
    lines = []
    for row in rows:
        (plain, robust), (before, after), (low, high) = row["planned"], row["mean"], row["p95"]
        cells = [f"{row['spread']:.0%}", *(f"{x:.1f}" for x in (plain, before, robust, after))]
        cells += [f"{row['gain']:.2%}", f"{1 - high / low:.2%}"]
        lines.append([row["instance"], *cells])
    return markdown([*head, "of p95"], lines, left=1)


def failures(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines on steps that are above the plain ones, and spreads at which few are far below."""
    for row in rows:
        if row["gain"] < 0:
            yield f"{row['instance']}, {row['spread']:.0%}: above the plain optimum's mean"
    for by in SPREADS:
        gains = [row["gain"] for row in rows if row["spread"] == by]
        better = sum(gain >= BETTER for gain in gains)
        if better < SHARE * len(gains):
            yield f"{by:.0%}: 1 % below on {better} of {len(gains)} instances"
