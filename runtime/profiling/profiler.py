"""Measures a model's stages and the links between ranks, to create a profile.

Ops are timed while all ranks compute at the same time, each in its own process, as in a pipeline:
if processes share cores, an op is faster while the others are idle. ``docs/profiling.md`` has
details.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.layers import Layer
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..launch.environment import own_gpu
from ..launch.processes import launch_ranks
from ..pipeline.layered_source import by_layers
from ..pipeline.model_source import (
    ModelSource,
    check_cut,
    checked_batch,
    most_stages,
    on_device,
)
from ..pipeline.pipeline import Pipeline
from ..pipeline.step_inputs import StepData
from ..probes.measuring import check_numbers
from ..probes.stage_probe import Asked
from ..rank.options import StagesAs, check_stages_as


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
    """Returns the measured profile of ``source``, cut into ``stages`` stages on ``ranks`` ranks.

    Stage s is measured on rank s mod ``ranks``. If ``stages`` is None, each of the source's layers
    (:mod:`..pipeline.layered_source`) is a stage, and the profile contains their names. Starts one
    process per rank, so the source must be picklable. Under torchrun, its processes are the ranks,
    and the result is the same on all of them.

    ``repeats``: the number of rounds that count, after ``warmup`` rounds that do not.
    ``in_flight``: the number of microbatches per round, by default ``ranks``. ``dtype``: that of
    parameters and inputs; None keeps the source's. ``together`` False: a single process measures
    one stage after the other, and no links; these are the times if nothing else runs. ``name``: the
    name of the profile. ``timeout``: the maximum seconds of a message. ``recompute``: also measure
    T_R and M_R. ``offload``: also measure M_O, the offloaded bytes and the link to the host.
    ``stages_as``: see :class:`~..pipeline.pipeline.Pipeline`.

    Raises InputError for invalid settings, LaunchError if a rank fails.
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
    count = ranks if together else 1
    options: dict[str, Any] = {
        **{"tied": source.tied(stages), "timeout": timeout, "stages_as": stages_as},
        **{"memory": False, "verify": False, "check": False},
    }
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
    """Measures this rank's stages, and returns the joint measurement of all ranks.

    ``asked``: the quantities to measure. ``options``: keyword arguments of :class:`Pipeline`.
    ``on``: the type of the device, ``cpu`` or ``cuda``. ``dtype``: the dtype of parameters and
    inputs; None keeps the source's.
    """
    device = torch.device(on)
    if device.type == "cuda":
        device = torch.device("cuda", own_gpu())
    elif "OMP_NUM_THREADS" not in os.environ:  # this rank's share of the cores
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    place = on_device(device, dtype)
    pipeline = Pipeline.from_source(program, source, place=place, device=device, **options)

    def given(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None)

    inputs, targets = ([*map(given, part)] for part in checked_batch(source, 0, asked.in_flight))
    found = pipeline.measured(asked, StepData([inputs], {}, targets, {}))
    pipeline.close()
    return found


def measurable(stages: int, ranks: int, asked: Asked, name: str) -> Program:
    """Returns a program with which a pipeline is created only to measure its stages.

    The program is never run. Stage s is on rank s mod ``ranks``. Its ops are F, B and W of the
    microbatches to measure. The program ends with a reduction over all stages, so that any
    parameters may be tied. ``asked``: what is measured. ``name``: the name of the program's
    profile.
    """
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * stages, ranks, name=name)
    placement = Placement.of_stages([s % ranks for s in range(stages)], ranks=ranks)
    problem = Problem(profile, asked.in_flight, placement, (inf,) * ranks)
    kinds = (OpKind.F, OpKind.B, OpKind.W)
    each = [(j, kind) for j in range(asked.in_flight) for kind in kinds]
    order = [
        [Op(kind, s, j) for s in range(r, stages, ranks) for j, kind in each] for r in range(ranks)
    ]
    end: list[ir.Instruction] = [ir.Reduce(tuple(range(stages)))]
    rows = tuple((*map(ir.Compute, ops), *end) for ops in order)
    return Program(Schedule.of(problem, order, "measured"), rows, ((),) * ranks)
