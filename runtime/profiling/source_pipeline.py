"""Measures a model source as a pipeline, by a program that contains each op of each stage."""

from __future__ import annotations

from math import inf
from typing import Any

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
from ..pipeline.step_inputs import StepData
from ..probes.stage_probe import Asked


def measure_source(
    source: ModelSource,
    program: Program,
    asked: Asked,
    options: dict[str, Any],
    *,
    dtype: torch.dtype | None,
    place: Place,
) -> Measurement:
    """Returns the measurement of the source's stages; all ranks of ``program`` call it.

    ``dtype``: of floating-point inputs; None keeps the source's.
    """
    measuring: dict[str, Any] = {"memory": False, "verify": False, "check": False, **options}
    pipeline = Pipeline.from_source(program, source, place=place, **measuring)

    def given(tensor: Tensor) -> Tensor:
        return tensor.to(pipeline.device, dtype if tensor.is_floating_point() else None)

    inputs, targets = checked_batch(source, 0, asked.in_flight)
    found = pipeline.measured(
        asked, StepData([[*map(given, inputs)]], {}, [*map(given, targets)], {})
    )
    pipeline.close()
    return found


def measurable(stages: int, ranks: int, asked: Asked, name: str) -> Program:
    """Returns a program with stage s on rank s mod P, which is never run.

    Its ops are those of the microbatches to measure. The final reduction covers all stages, for
    any ties.
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
