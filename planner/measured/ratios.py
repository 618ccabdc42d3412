"""Op times as a trace has them, for samples of steps that have not been run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.spread import KINDS, ROWS
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.units import counted

from ..inputs.documents import FilePath
from ..solving.progress import Listener, unheard
from .files import read_recordings
from .profile import after_warmup, over_all_ranks
from .samples import Sample

LEAST = 1e-9  # ms


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRatios:
    """``times``: of ops, those of a BW for B and W, in ms, shape (steps, 4, S, N), nan of kinds
    that were not run; ``fused``, (S,): of which stages B and W were one op.

    Each stage of a sample takes the times of one measured step, drawn for that stage, op by op as
    they ran: what comes with a place, such as a slow first F, stays there. How fast a step is as a
    whole (drift, clocks) all stages have in common: it is drawn from a log-normal distribution with
    the standard deviation that the measured steps' medians have. Of one step alone each op
    takes the time of any op of its stage and kind.
    """

    times: FloatArray
    fused: tuple[bool, ...]

    def draw(self, problem: Problem, samples: int, rng: np.random.Generator) -> FloatArray:
        """The ratios of samples to the profile's times. Raises InputError for other stages."""
        steps, kinds, stages, places = self.times.shape
        if stages != problem.stages:
            raise InputError(
                f"spread: expected measured ops of {counted(problem.stages, 'stage')}, got {stages}"
            )
        at = np.round(np.linspace(0, places - 1, problem.microbatches)).astype(np.int64)
        shape = (kinds, stages, problem.microbatches, samples)
        whole = self._whole()
        if steps == 1:
            at = rng.integers(places, size=shape)
            drawn = np.take_along_axis(self.times[0][..., None], at, axis=2)
        else:
            pick = rng.integers(steps, size=(stages, samples))
            own = self.times / whole[:, None, None, None]
            drawn = np.empty(shape)
            for s in range(stages):
                drawn[:, s] = own[pick[s], :, s][..., at].transpose(1, 2, 0)
            deviation = np.std(np.log(whole), ddof=1) * np.sqrt(1 + 1 / steps)  # of a new step
            drawn *= np.exp(deviation * rng.standard_normal(samples) - deviation**2 / 2)
        return np.nan_to_num(drawn / self._planned(problem), nan=1.0, posinf=1.0)

    def _whole(self) -> FloatArray:
        """How slow each step was over the mean of all, (steps,): by its medians, one a stage and
        kind, so that one op that was held up does not count."""
        ran = ~np.isnan(self.times[0, :, :, 0])
        medians = np.maximum(np.nanmedian(self.times[:, ran], axis=2), LEAST)
        logs: FloatArray = np.log(medians).mean(axis=1)
        whole: FloatArray = np.exp(logs - logs.mean())
        return whole

    def _planned(self, problem: Problem) -> FloatArray:
        """The profile's times of the ops that were measured, (4, S, M, 1)."""
        durations = Costs.of(problem).durations
        if durations.ndim == 2:
            durations = np.repeat(durations[..., None], problem.microbatches, axis=2)
        planned = durations[list(KINDS)].copy()
        fused = np.array(self.fused)
        planned[1:3, fused] = durations[OpKind.BW, fused]
        return planned[..., None]


def measured_ratios(
    files: FilePath | Sequence[FilePath],
    *,
    warmup: int | None = None,
    progress: Listener | None = None,
) -> MeasuredRatios:
    """The times of ops in files as :func:`pipeloom.profile_from` reads them, with what their ranks
    pause after each, the first step left out where there are several.

    Raises InputError where they are none, or not as many in each step.
    """
    given = [files] if isinstance(files, str) or not isinstance(files, Sequence) else list(files)
    recordings = read_recordings(given)
    ranks = len(recordings)
    samples = [s for at, r in enumerate(recordings) for s in over_all_ranks(r, at, ranks)]
    kept = after_warmup(samples, warmup, progress or unheard)
    return _table([sample for sample in kept if not sample.kind.copies])


def _table(samples: Sequence[Sample]) -> MeasuredRatios:
    steps = sorted({sample.step for sample in samples})
    stages = 1 + max((sample.stage for sample in samples), default=-1)
    count = Counter((s.stage, s.kind, s.step) for s in samples)
    places = max(count.values(), default=0)
    times = np.full((len(steps), len(KINDS), stages, places), np.nan)
    seen: Counter[tuple[int, OpKind, int]] = Counter()
    fused = [False] * stages
    for sample in samples:
        key = (sample.stage, sample.kind, sample.step)
        rows = [ROWS[sample.kind]] + [2] * (sample.kind is OpKind.BW)
        times[steps.index(sample.step), rows, sample.stage, seen[key]] = (
            sample.milliseconds + sample.pause
        )
        fused[sample.stage] |= sample.kind is OpKind.BW
        seen[key] += 1
    if not places or np.isnan(times[:, :2]).any():
        raise InputError(
            "spread: expected as many F and B, or BW, of each stage in each measured step"
        )
    return MeasuredRatios(times, tuple(fused))
