"""The public functions that need torch: ``measure`` and ``run``."""

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
    """Measure the stages of ``model`` and return their profile.

    ``model``: a model source, or ``module:attribute``. ``stages``: the number of pieces; without
    it, or with ``layers``, each layer is measured separately. ``ranks``: the number of processes,
    by default that of stages. ``alone``: one process measures the stages one by one, and no links.
    ``memory_limit``: the limit in bytes of activations per rank to write into the profile.
    ``dtype``: for example ``float32``; None: the model's own.

    The other settings are those of :func:`measure_profile`. Raises InputError for invalid settings,
    and LaunchError if a rank fails.
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
    """Train ``model`` with ``program``; returns the losses and times of the steps.

    ``trace``: a file for the median step, a schedule with measured times. ``callbacks``: functions
    called in this process after each step with its :class:`StepRecord`, or their names
    ``module:attribute``; if they have a method ``close``, it is called at the end. ``quiet``: no
    progress on standard error. The other settings are those of :class:`RunSettings`. Under
    torchrun, all processes but the first return None. Raises InputError for invalid input, and
    LaunchError if a rank fails.
    """
    loaded, where = read_program(program)
    chosen = RunSettings(progress=not quiet, post_validation=not no_post_validation, **settings)
    with naming(where):
        count_replicas(loaded, chosen)
    return run_program(loaded, model, chosen, callbacks=callbacks, trace_path=trace)
