"""The public functions that need torch: :func:`measure` and :func:`run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.removed import telling_removed
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
    **settings: Any,
) -> Measurement:
    """Measure the stages or layers of ``model``, and the links between ranks; returns the measured
    profile.

    ``model``: a model source, or ``module:attribute``. ``stages``: the number of stages to measure;
    without it, or with ``layers``, each layer is measured separately. ``ranks``: the number of
    processes, by default ``stages``. ``alone``: measure the stages one by one in a single process,
    and no links. ``name``: the name of the profile. ``memory_limit``: the limit on each rank's
    activations, in bytes, to be written into the profile. ``dtype``: the type of parameters and
    activations, such as ``float32``, or None for the model's own.

    ``settings``: further arguments of :func:`measure_profile`. Raises InputError for invalid
    settings, and LaunchError if a rank fails.
    """
    if layers and stages is not None:
        raise InputError(f"stages: expected none beside layers, got {stages}")
    processes = ranks or stages
    if processes is None:
        if layers:
            raise InputError("ranks: missing; expected a number of processes for the layers")
        raise InputError("stages: missing; expected pieces of the model, or layers and ranks")
    memory_limit = memory_limit_of(memory_limit)
    found = measure_profile(
        load_source(model) if isinstance(model, str) else model,
        stages=stages,
        ranks=processes,
        together=not alone,
        name=name or (model if isinstance(model, str) else ""),
        dtype=DTYPES[dtype] if dtype else None,
        **settings,
    )
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
    """Train ``model`` with ``program``; returns the losses, times and peak memory of the steps.

    ``trace``: the file for the median step, written as a schedule with measured times.
    ``callbacks``: functions that this process calls after each step with its :class:`StepRecord`,
    or their names ``module:attribute``; a method ``close`` of a callback, if there is one, is
    called at the end. ``quiet``: print no progress to standard error. ``no_post_validation``: wait
    for the norm of all gradients before each optimizer step. ``settings``: further settings, as in
    :class:`RunSettings`. Under torchrun, all processes except the first return None. Raises
    InputError for invalid input, and LaunchError if a rank fails.
    """
    loaded, where = read_program(program)
    chosen = RunSettings(progress=not quiet, post_validation=not no_post_validation, **settings)
    with naming(where):
        count_replicas(loaded, chosen)
    return run_program(loaded, model, chosen, callbacks=callbacks, trace_path=trace)
