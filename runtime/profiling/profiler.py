"""Measures a model's stages and the links between ranks, to create a profile.

Ops are timed while all ranks compute at the same time, each in its own process, as in a pipeline:
if processes share cores, an op measured alone would be too fast. ``docs/profiling.md`` has details.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.layers import Layer
from pipeloom.ir.model.program import Program

from ..launch.environment import own_gpu
from ..launch.processes import launch_ranks
from ..pipeline.layered_source import by_layers
from ..pipeline.model_source import ModelSource, check_cut, most_stages, on_device
from ..probes.measuring import check_numbers
from ..probes.stage_probe import Asked
from ..rank.options import StagesAs, check_stages_as
from .source_pipeline import measurable, measure_source


def measure_profile(
    source: ModelSource,
    *,
    stages: int | None = None,
    ranks: int,
    repeats: int = 10,
    warmup: int = 2,
    in_flight: int | None = None,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    together: bool = True,
    name: str = "",
    timeout: float = 300.0,
    recompute: bool = False,
    offload: bool = False,
    stages_as: StagesAs = "eager",
) -> Measurement:
    """Returns the profile of ``source`` cut into ``stages`` on ``ranks``, stage s on rank s mod P.

    Without ``stages``, each of the source's layers is a stage (:mod:`..pipeline.layered_source`),
    and the profile's stages name them. Starts one process per rank, so the source must be
    picklable; or joins torchrun's processes, on all of which it returns the same.

    ``together`` False: one process measures one stage after the other, and no links; these are the
    times if nothing else runs. ``recompute``: measure T_R and M_R, too. ``offload``: M_O, the
    offloaded bytes and the link to the host. ``stages_as``: see
    :class:`~..pipeline.pipeline.Pipeline`. Raises InputError for invalid settings, LaunchError if a
    rank fails.
    """
    check_stages_as(stages_as)
    layers: Sequence[Layer] = ()
    if stages is None:
        source, layers = by_layers(source)
        stages = len(layers)
    check_numbers(stages=stages, ranks=ranks, repeats=repeats, warmup=warmup, in_flight=in_flight)
    if ranks > stages:
        raise InputError(f"ranks: expected at most {stages}, as many as stages, got {ranks}")
    check_cut(source, stages)
    asked = Asked(in_flight or ranks, not layers, recompute, offload, repeats, warmup)
    options: dict[str, Any] = {
        "tied": source.tied(stages),
        "timeout": timeout,
        "stages_as": stages_as,
    }
    count = ranks if together else 1
    program = measurable(stages, count, asked, name)
    measure = partial(_measure_rank, source, program, asked, options, dtype=dtype, ranks=ranks)
    results = launch_ranks(measure, count, (device,), device=device)
    found: Measurement = replace(next(iter(results.values())), together=together)
    profile = replace(found.profile, ranks=ranks, max_stages=None)
    if not layers:
        profile = replace(profile, max_stages=most_stages(source, stages))
        return replace(found, profile=profile)
    pairs = zip(profile.stages, layers, strict=True)
    named = tuple(replace(stage, layers=(layer,)) for stage, layer in pairs)
    return replace(found, profile=replace(profile, stages=named), by_layers=True)


def _measure_rank(
    source: ModelSource,
    program: Program,
    asked: Asked,
    options: dict[str, Any],
    on: str,
    *,
    dtype: torch.dtype | None,
    ranks: int,
) -> Measurement:
    """Returns the measurement, the same on every rank; ``on`` is the type of device."""
    device = torch.device(on)
    if device.type == "cuda":
        device = torch.device("cuda", own_gpu())
    elif "OMP_NUM_THREADS" not in os.environ:  # this rank's share of the cores
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    place, options = on_device(device, dtype), {**options, "device": device}
    return measure_source(source, program, asked, options, dtype=dtype, place=place)
