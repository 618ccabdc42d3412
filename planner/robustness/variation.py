"""The ways in which op times differ from a profile's: their spread, and slow ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from pipeloom.ir.cost.spread import LogNormal, Ratios
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile
from pipeloom.report.summaries import percent

from ..inputs.documents import FilePath, named
from ..measured.ratios import MeasuredRatios, measured_ratios
from ..solving.progress import Listener

Spread: TypeAlias = bool | float | FilePath | None
"""True: the profile's own; a relative standard deviation; or files of measured ops."""
Slow: TypeAlias = Mapping[int, float] | None
"""How many times as long ranks take that are not as fast as the others."""


@dataclass(frozen=True, slots=True)
class Variation:
    """``spread``: of all stages; None: the profile's own, which ``own`` says is asked for.
    ``measured``: in place of them. ``slow``: by rank."""

    spread: float | None = None
    own: bool = False
    measured: MeasuredRatios | None = None
    where: str = ""
    slow: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, spread: Spread, slow: Slow = None, progress: Listener | None = None) -> Variation:
        """Raises InputError for a spread beyond 0 to 1, a wrong file, a time that is none."""
        for rank, by in (slow or {}).items():
            if isinstance(by, bool) or not (isinstance(by, int | float) and 0 < by < math.inf):
                raise InputError(f"slow: expected a number > 0 of rank {rank}, got {by!r}")
        given = cls(slow=dict(slow or {}))
        if isinstance(spread, str | os.PathLike):
            ratios = measured_ratios(spread, progress=progress)
            return replace(given, measured=ratios, where=named(spread))
        if spread is None or isinstance(spread, bool):
            return replace(given, own=bool(spread))
        if not (isinstance(spread, int | float) and 0 <= spread <= 1):
            raise InputError(f"spread: expected a number from 0 to 1, got {spread!r}")
        return replace(given, spread=float(spread))

    @property
    def spreads(self) -> bool:
        """Whether times are drawn at all."""
        return self.own or self.spread is not None or self.measured is not None

    def ratios(self, problem: Problem) -> Ratios:
        """The source of the problem's times. Raises InputError where its profile should say so and
        does not."""
        if self.measured is not None:
            return self.measured
        each = [stage.spread for stage in problem.profile.stages]
        if self.own and all(spread is None for spread in each):
            raise InputError("spread: missing; expected it in the profile, or a number here")
        if self.own:
            return LogNormal(tuple(spread or 0.0 for spread in each))
        return LogNormal((self.spread or 0.0,) * problem.stages)

    def fits(self, problem: Problem) -> bool:
        """Whether as many stages were measured as it has, where times are those of a trace."""
        return self.measured is None or self.measured.times.shape[2] == problem.stages

    def of_ranks(self, ranks: int) -> FloatArray:
        """How many times as long each rank takes, (P,). Raises InputError for ranks beyond."""
        by = np.ones(ranks)
        for rank, times in self.slow.items():
            if not 0 <= rank < ranks:
                raise InputError(f"slow: expected ranks 0..{ranks - 1}, got {rank}")
            by[rank] = times
        return by

    def __str__(self) -> str:
        parts = [f"rank {rank} takes {by:g} times as long" for rank, by in self.slow.items()]
        if self.measured is not None:
            parts.append(f"op times as measured in {self.where}")
        elif self.own:
            parts.append("op times spread as the profile says")
        elif self.spread is not None:
            parts.append(f"op times spread by {percent(self.spread)}")
        return ", ".join(parts)


def slowed(problem: Problem, slow: Slow) -> Problem:
    """The problem with the times of slow ranks in its profile.

    Raises InputError for a rank that there is not, and where a stage runs on several ranks.
    """
    if not slow:
        return problem
    by = Variation.of(None, slow).of_ranks(problem.ranks)
    if problem.placement.passing is not Passing.ACTIVATIONS:
        two = problem.placement.kind is PlacementKind.BIDIRECTIONAL
        got = "--placement bidirectional" if two else "--passing weights"
        raise InputError(f"slow: expected each stage on one rank, got {got}")
    owners = problem.owner[:, 0]
    stages = tuple(
        stage.changed(partial(_longer, times=times))
        for stage, times in zip(problem.profile.stages, by[owners].tolist(), strict=True)
    )
    return replace(problem, profile=replace(problem.profile, stages=stages))


def _longer(stage: StageProfile, times: float) -> StageProfile:
    keys = ("t_f", "t_b", "t_w", "t_bw", "t_fb", "t_r")
    known = {key: getattr(stage, key) for key in keys}
    levels = tuple(replace(level, t_r=level.t_r * times) for level in stage.levels)
    longer = {key: time * times for key, time in known.items() if time is not None}
    return replace(stage, **longer, levels=levels)


def drawn_samples(ops: int) -> int:
    """The number of samples that take about a second."""
    return int(np.clip(1e7 // max(ops, 1), 256, 4096))


def weighted(felt: FloatArray, times: FloatArray) -> float:
    """Milliseconds that a cost grows by where these ops take 1 % longer."""
    return float((felt * times).sum()) * 0.01
