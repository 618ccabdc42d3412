"""Where weights travel, gradients and optimizer steps are one process's, on two to eight ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.transfers import owned
from pipeloom.runtime.launch.processes import launch
from tests.distributed.cases.weights import BOUNDS, STEPS, Case, Outcome, cases, run_cases, schedule
from tests.support.models import reference

RANKS = (2, 3, 4, 8)
ALL = [
    pytest.param(
        case,
        marks=[pytest.mark.slow, pytest.mark.timeout(900)] if case.slow or ranks > 4 else [],
        id=str(case),
    )
    for ranks in RANKS
    for case in cases(ranks)
]


@cache
def outcomes(ranks: int, slow: bool) -> dict[Case, tuple[Program, list[Outcome]]]:
    """All cases of one number of ranks, slow ones or the others, in one launch."""
    programs = {case: compiled(case) for case in cases(ranks) if case.slow is slow}
    chosen = list(programs.items())
    found = launch(run_cases, ranks, (chosen,), timeout=860 if slow else 280, message_timeout=120)
    return {
        case: (program, [found[rank][i] for rank in range(ranks)])
        for i, (case, program) in enumerate(chosen)
    }


def compiled(case: Case) -> Program:
    """Planned once for both dtypes."""
    return _compiled(replace(case, dtype=torch.float64, memory=True, slow=False))


@cache
def _compiled(case: Case) -> Program:
    tied = [sorted({s for s, _ in group}) for group in case.source.tied(case.stages)]
    return compile_schedule(schedule(case), tied=tied)


@cache
def expected(
    dtype: torch.dtype, stages: int, microbatches: int
) -> tuple[dict[str, FloatArray], dict[str, FloatArray], list[float]]:
    """One process's first gradients, its parameters after the last step, that step's losses."""
    source = Case("", 1, microbatches, dtype, stages).source
    _, gradients = reference(source, stages, microbatches)
    history, parameters = reference(source, stages, microbatches, steps=STEPS, train=True)
    return _arrays(gradients), _arrays(parameters), history[-1]


def _arrays(tensors: dict[str, torch.Tensor]) -> dict[str, FloatArray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def difference(found: FloatArray, wanted: FloatArray) -> float:
    """The largest difference, relative to the largest value."""
    value = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    return math.inf if math.isnan(value) else value


@pytest.mark.parametrize("case", ALL)
def test_gradients_and_steps_are_one_processs(case: Case) -> None:
    program, rows = outcomes(case.ranks, case.slow)[case]
    gradients, parameters, losses = expected(case.dtype, case.stages, case.microbatches)
    names = {s: [n for n in parameters if n.startswith(f"{s}.")] for s in range(case.stages)}
    for rank, row in enumerate(rows):
        mine = sorted(name for s in owned(program.schedule)[rank] for name in names[s])
        assert sorted(row.gradients) == sorted(row.parameters) == mine
        for name in mine:
            assert difference(row.gradients[name], gradients[name]) <= BOUNDS[case.dtype], name
            assert difference(row.parameters[name], parameters[name]) <= BOUNDS[case.dtype], name
        ended = [
            op.microbatch
            for op in program.schedule.ops(rank)
            if op.kind is OpKind.F and op.stage == case.stages - 1
        ]
        wanted = [losses[j] for j in sorted(ended)]
        assert row.losses == pytest.approx(wanted, rel=BOUNDS[case.dtype])


@pytest.mark.parametrize(
    "ranks", [pytest.param(n, marks=[pytest.mark.slow] if n > 4 else []) for n in RANKS]
)
def test_every_stage_is_compared(ranks: int) -> None:
    for case, (program, _) in outcomes(ranks, False).items():
        assert set().union(*owned(program.schedule)) == set(range(case.stages))


@pytest.mark.parametrize("ranks", [2, 3, 4])  # on 8 the cases to compare with are slow ones
def test_activations_of_one_microbatch_are_held_at_a_time(ranks: int) -> None:
    """The first BW of a microbatch comes before the first F of the next one but one."""
    peaks = {
        (case.dtype, case.microbatches): [row.peak_memory for row in rows]
        for case, (_, rows) in outcomes(ranks, False).items()
        if case.plan == "weipipe-interleave" and case.memory
    }
    assert len(peaks) > 1
    for (dtype, count), found in peaks.items():
        assert max(found) < 1.05 * peaks[torch.float64, ranks][0] * dtype.itemsize / 8, count
