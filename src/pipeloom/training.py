"""The functions that need torch: ``measure`` and ``run``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.removed import telling_removed
from pipeloom.planner.measured.profile import Like, with_times_of
from pipeloom.runtime.models.by_name import load_source
from pipeloom.runtime.pipeline.model_source import ModelSource
from pipeloom.runtime.profiling.profiler import measure_profile
from pipeloom.runtime.train.loop import Listener
from pipeloom.runtime.train.replicas import count_replicas
from pipeloom.runtime.train.settings import DTYPES, RunSettings
from pipeloom.runtime.train.train import RunResult, run_program

from .planner.inputs.documents import Document, naming, read_program
from .planner.inputs.words import memory_limit_of

if TYPE_CHECKING:
    from pipeloom.ir.model.program import Program


@telling_removed
def measure(
    model: ModelSource | str,
    *,
    stages: int | None = None,
    layers: bool = False,
    ranks: int | None = None,
    alone: bool = False,
    name: str = "",
    memory_limit: float | str | None = None,
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
    else 1 for each op. The other settings are those of :func:`measure_profile`. Raises InputError
    for wrong ones, LaunchError where a rank fails.
    """
    if layers and stages is not None:
        raise InputError(f"stages: expected none beside layers, got {stages}")
    processes = ranks or stages
    if processes is None:
        if layers:
            raise InputError("ranks: missing; expected a number of processes for the layers")
        raise InputError("stages: missing; expected pieces of the model, or layers and ranks")
    memory_limit = memory_limit_of(memory_limit)
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


@telling_removed
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
    The other settings are those of :class:`RunSettings`. None under torchrun on all processes but
    the first. Raises InputError for wrong input, LaunchError where a rank fails.
    """
    loaded, where = read_program(program)
    chosen = RunSettings(progress=not quiet, post_validation=not no_post_validation, **settings)
    with naming(where):
        count_replicas(loaded, chosen)
    return run_program(loaded, model, chosen, callbacks=callbacks, trace_path=trace)
