"""The functions that need torch: ``measure``, ``run`` and ``tune``, each as its command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.profile import check_limit
from pipeloom.runtime.models.by_name import load_source
from pipeloom.runtime.pipeline.layered_source import as_planned
from pipeloom.runtime.pipeline.model_source import (
    PACKED,
    ModelSource,
    checked_batch,
    has_lengths,
    lengths_at,
    naming_lengths,
)
from pipeloom.runtime.profiling.profiler import measure_profile
from pipeloom.runtime.train.loop import Listener
from pipeloom.runtime.train.packed import check_alone, check_gives
from pipeloom.runtime.train.replicas import count_replicas
from pipeloom.runtime.train.settings import DTYPES, RunSettings
from pipeloom.runtime.train.train import RunResult, run_program
from pipeloom.runtime.train.tune import check_tunable, tune_program
from pipeloom.runtime.train.tuned_steps import TuneResult

from .planner.inputs.documents import Document, naming, read_program
from .planner.inputs.problem_setup import check_alike
from .planner.measured.like import Like, with_times_of
from .planner.optimize import positive
from .planner.tuning.repack import Repacker
from .planner.tuning.replan import Replanner

if TYPE_CHECKING:
    from pipeloom.ir.model.program import Program


def measure(
    model: ModelSource | str,
    *,
    stages: int | None = None,
    layers: bool = False,
    ranks: int | None = None,
    alone: bool = False,
    name: str = "",
    memory_limit: float | None = None,
    dtype: str | None = None,
    like: Like | None = None,
    **settings: Any,
) -> Measurement:
    """The profile of ``model``, measured.

    ``model``: a source, or where one is, as ``module:attribute``. ``stages``: pieces of it;
    without them, or with ``layers``, each of its layers by itself. ``ranks``: processes, as many as
    stages by default. ``alone``: one
    process, a stage after the other, and no links. ``memory_limit``: bytes of activations on a
    rank, which the profile is given. ``dtype``: ``float32``, say; None: the model's own.
    ``memory_only=True``: bytes by calculation, without a step and without the model's memory; times
    are then those of ``like``, a profile of the same stages (or a schedule or program for one),
    else 1 for each op. The other
    settings are those of :func:`measure_profile`: among them ``group``, ``data_group`` and ``view``
    where the stages are shards, in a job that torchrun started. Raises InputError for wrong ones,
    LaunchError where a rank fails.
    """
    if layers and stages is not None:
        raise InputError(f"stages: expected none beside layers, got {stages}")
    processes = ranks or stages
    if processes is None:
        if layers:
            raise InputError("ranks: missing; expected a number of processes for the layers")
        raise InputError("stages: missing; expected pieces of the model, or layers and ranks")
    if memory_limit is not None:
        check_limit(memory_limit)
    if like is not None and not settings.get("memory_only"):
        raise InputError("like: expected none without memory_only, as times are measured")
    found = measure_profile(
        load_source(model) if isinstance(model, str) else model,
        stages=stages,
        ranks=processes,
        together=not alone,
        name=name or (model if isinstance(model, str) else ""),
        dtype=DTYPES[dtype] if dtype else None,
        **settings,
    )
    if like is not None:
        found = with_times_of(found, like)
    if memory_limit is None or math.isinf(memory_limit):
        return found
    limits = (memory_limit,) * found.profile.ranks
    return replace(found, profile=replace(found.profile, memory_limit=limits))


def run(
    program: Program | Document,
    model: ModelSource | str,
    *,
    trace: str | None = None,
    callbacks: Sequence[Listener | str] = (),
    quiet: bool = True,
    no_post_validation: bool = False,
    **settings: Any,
) -> RunResult | None:
    """Trains ``model`` by ``program``, and what the steps took.

    ``trace``: a file for the median step, as a schedule with measured times. ``callbacks``: called
    in this process after each step with its :class:`StepRecord`, and their ``close()``, if they
    have one, at the end; or named ``module:attribute``. ``quiet``: no progress on standard error.
    A program of packed sequences trains on these, which ``model`` gives by ``lengths`` and
    ``packed``.
    The other settings are those of :class:`RunSettings`. None under torchrun on all processes but
    the first. Raises InputError for wrong input, LaunchError where a rank fails.
    """
    loaded, where = read_program(program)
    chosen = RunSettings(progress=not quiet, post_validation=not no_post_validation, **settings)
    with naming(where, "local"):
        check_alone(loaded, count_replicas(loaded, chosen))
    return run_program(loaded, model, chosen, callbacks=callbacks, trace_path=trace)


def tune(
    program: Program | Document,
    model: ModelSource | str,
    *,
    every: int = 5,
    time_limit: float | None = None,
    max_tokens: int | None = None,
    steps: int = 20,
    callbacks: Sequence[Listener | str] = (),
    quiet: bool = True,
    **settings: Any,
) -> TuneResult | None:
    """Trains ``model`` by ``program``, and plans anew from measured times after each ``every``
    steps.

    Where the model source has ``lengths`` each step's sequences are packed, into microbatches of
    ``max_tokens`` at most, and planned; after each ``every`` steps what they cost is fitted to what
    was measured (:func:`refit`), but for the first step. ``time_limit``: seconds for each plan, 10
    by default, of packed steps half a second. ``callbacks``: as for :func:`run`. The other settings
    are those of :class:`RunSettings`. None under torchrun on all processes but the first. Raises
    InputError for wrong input, or a program that cannot be tuned.
    """
    loaded, where = read_program(program)
    with naming(where):
        check_tunable(loaded)
    chosen = RunSettings(steps=steps, progress=not quiet, **settings)
    with naming(where):
        check_alike(loaded.schedule.problem.profile.unpacked, "schedule: profile: stages", "tune")
    problem = loaded.schedule.problem
    source = load_source(model) if isinstance(model, str) else model
    tied = as_planned(source, problem.profile).tied(problem.stages)
    ties = tuple(tuple(stage for stage, _ in group) for group in tied)
    planner: Replanner | Repacker
    check_gives(loaded, source)
    packs = has_lengths(source)
    limit = _limit(time_limit, 0.5 if packs else 10.0, chosen)
    if packs:
        with naming(where):
            planner = Repacker(loaded, ties, limit, chosen.seed, max_tokens)
        with naming_lengths(source, 0, "max_tokens", "microbatches"):
            rows = planner.check(lengths_at(source, 0))
        checked_batch(source, 0, rows, PACKED)
    else:
        if max_tokens is not None:
            raise InputError("max_tokens: expected a model source with lengths(step), to be packed")
        planner = Replanner(loaded, ties, limit, chosen.seed)
    return tune_program(loaded, model, chosen, every, planner, callbacks=callbacks)


def _limit(given: float | None, usual: float, settings: RunSettings) -> float:
    """Seconds for a plan. Raises InputError where the ranks that wait for it are less patient."""
    limit = positive("time_limit", given)
    if limit is not None and limit >= settings.patience:
        raise InputError(
            f"time_limit: expected less than {settings.patience:g}, the seconds that ranks wait "
            f"for the first one's plan at most (message_timeout, timeout), got {limit:g}"
        )
    return limit or usual
