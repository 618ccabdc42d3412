"""A model source measured as a pipeline of its own, by a program that has each op of each stage."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..dtensors import is_dtensor
from ..pipeline.model_source import ModelSource, checked_batch, checked_stages, options_of
from ..pipeline.pipeline import Pipeline
from ..pipeline.step_arguments import StepData
from ..probes.measurement_program import Asked
from ..rank.options import Options
from ..stages.store import Stage, made

Place: TypeAlias = Callable[[Callable[[], nn.Module], int], nn.Module]
"""Makes a stage's module, by a function and the stage's number, where it is measured."""


def measure_source(
    source: ModelSource,
    program: Program,
    asked: Asked,
    options: Options,
    *,
    dtype: torch.dtype | None,
    view: str = "all",
    place: Place,
) -> Measurement:
    """The measurement of the source's stages on the ranks of ``program``, which all call it.

    ``dtype``: that of floating inputs; None leaves the source's own. Raises InputError for stages
    wrapped in ``fully_shard`` without a ``data_group``.
    """
    count = program.schedule.problem.stages
    stages = [_placed(stage, s, place) for s, stage in enumerate(checked_stages(source, count))]
    merged: Options = {
        **options_of(source, count), "memory": False, "verify": False, "check": False, **options
    }  # fmt: skip
    pipeline = Pipeline(program, stages, **merged)

    def given(tensor: Tensor) -> Tensor:
        return tensor.to(pipeline.device, dtype if tensor.is_floating_point() else None)

    inputs, targets = checked_batch(source, 0, asked.in_flight)
    data = StepData([[*map(given, inputs)]], {}, [*map(given, targets)], {})
    found = pipeline.measured(asked, data, view)
    pipeline.close()
    return found


def measurable(stages: int, ranks: int, asked: Asked, name: str, *, averages: bool) -> Program:
    """A program with stage s on rank s mod P that is never run: its ops are those of microbatches
    that are measured, its ends of a step whatever ties or replicas (``averages``) may need."""
    owners = [s % ranks for s in range(stages)]
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * stages, ranks, name=name)
    placement = Placement.of_stages(owners, ranks=ranks)
    problem = Problem(profile, asked.in_flight, placement, (inf,) * ranks)
    kinds = (OpKind.F, OpKind.B, OpKind.W)
    each = [(j, kind) for j in range(asked.in_flight) for kind in kinds]
    ops = [
        [Op(kind, s, j) for s in range(r, stages, ranks) for j, kind in each] for r in range(ranks)
    ]
    rows: list[tuple[ir.Instruction, ...]] = []
    for rank, own in enumerate(ops):
        ends = [ir.Average(s) for s in range(rank, stages, ranks) if averages]
        rows.append((*map(ir.Compute, own), ir.Reduce(tuple(range(stages))), *ends))
    return Program(Schedule.of(problem, ops, "measured"), tuple(rows), ((),) * ranks)


def _placed(stage: Stage, number: int, place: Place) -> Stage:
    """The stage that is made where it is measured; a module stays one, as ties are seen on it."""
    if isinstance(stage, nn.Module):
        return place(lambda: stage, number)
    return lambda: place(stage, number)


def on_device(device: torch.device, dtype: torch.dtype | None) -> Place:
    """A function that moves a stage's module to the device and converts it to the dtype, if one is
    given. Sharded modules stay as they are; with a dtype they raise InputError."""

    def place(make: Callable[[], nn.Module], stage: int) -> nn.Module:
        module = made(make, stage)
        if not any(map(is_dtensor, module.parameters())):
            return module.to(device=device, dtype=dtype)
        if dtype is not None:
            raise InputError(
                f"dtype: expected none, as stage {stage} has shards in their own, got {dtype}"
            )
        return module

    return place
