"""A model source measured as a pipeline of its own, by a program that has each op of each stage."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..pipeline.model_source import ModelSource, Place, checked_batch
from ..pipeline.pipeline import Pipeline
from ..pipeline.step_arguments import StepData
from ..probes.measurement_program import Asked
from ..rank.options import Options


def measure_source(
    source: ModelSource,
    program: Program,
    asked: Asked,
    options: Options,
    *,
    dtype: torch.dtype | None,
    place: Place,
) -> Measurement:
    """The measurement of the source's stages on the ranks of ``program``, which all call it.

    ``dtype``: that of floating inputs; None leaves the source's own. Raises InputError for stages
    wrapped in ``fully_shard`` without a ``data_group``.
    """
    measuring: Options = {"memory": False, "verify": False, "check": False, **options}
    pipeline = Pipeline.from_source(program, source, place=place, **measuring)

    def given(tensor: Tensor) -> Tensor:
        return tensor.to(pipeline.device, dtype if tensor.is_floating_point() else None)

    inputs, targets = checked_batch(source, 0, asked.in_flight)
    found = pipeline.measured(
        asked, StepData([[*map(given, inputs)]], {}, [*map(given, targets)], {})
    )
    pipeline.close()
    return found


def measurable(stages: int, ranks: int, asked: Asked, name: str, *, averages: bool) -> Program:
    """A program with stage s on rank s mod P that is never run: its ops are those of microbatches
    that are measured, its ends of a step whatever ties or replicas (``averages``) may need."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * stages, ranks, name=name)
    placement = Placement.of_stages([s % ranks for s in range(stages)], ranks=ranks)
    problem = Problem(profile, asked.in_flight, placement, (inf,) * ranks)
    kinds, order, rows = (OpKind.F, OpKind.B, OpKind.W), list[list[Op]](), []
    for rank in range(ranks):
        own = range(rank, stages, ranks)
        order.append([Op(k, s, j) for s in own for j in range(asked.in_flight) for k in kinds])
        ends = [ir.Average(s) for s in own if averages]
        rows.append((*map(ir.Compute, order[-1]), ir.Reduce(tuple(range(stages))), *ends))
    return Program(Schedule.of(problem, order, "measured"), tuple(rows), ((),) * ranks)
