"""Stages as graphs in whole pipelines: gradients are one process's, whatever the schedule sends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.schedule import Schedule
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.solver.families import build_family
from tests.distributed.cases import gradients, graphs, meshes, remat, weights
from tests.distributed.test_meshes import TP
from tests.distributed.test_weight_gradients import compiled, difference, expected
from tests.support.models import TinyTransformer

FLOAT64 = torch.float64
ACTIVATIONS = [
    gradients.Case("zb-h1", 2, 4, FLOAT64, stages_as="aten"),
    gradients.Case(gradients.V, 2, 5, FLOAT64, steps=3, stages_as="aten"),
]
WEIGHTS = [weights.Case("interleave with B and W apart", 2, 4, FLOAT64, 2, stages_as="aten")]
REMAT = [remat.Case(lever, 2, FLOAT64, stages_as="aten") for lever in ("recompute", "offload")]
COMPILED = gradients.Case("zb-h1", 2, 4, torch.float32, stages_as="inductor")


def run(
    sends_weights: Sequence[Any], remats: Sequence[tuple[remat.Case, Schedule]], whole: Schedule
) -> tuple[list[Any], list[Any], list[Any], dict[str, Any]]:
    """On every rank of one launch."""
    found = gradients.run_cases(ACTIVATIONS)
    last = more() | {"refused": remat.refused(whole)}
    last |= graphs.run_cases([*graphs.OPTIONS, graphs.REPLICAS])
    return found, weights.run_cases(sends_weights), remat.run_cases(remats), last


def more() -> dict[str, Any]:
    """Of a pipeline of shapes that vary: how many graphs its stage had after each step."""
    source = TinyTransformer(FLOAT64)
    program = compile_schedule(build_family("zb-h1", gradients.profile(2), 2), tied=[(0, 1)])
    options: dict[str, Any] = {"stages_as": "aten", "varying_shapes": True}
    pipeline = Pipeline.from_source(program, source, train=False, **options)
    counts, functions = [], []
    for rows in (2, 2, 3, 2):
        inputs, targets = replace(source, rows=rows).batch(0, 2)
        pipeline.step(inputs, target=targets)
        counts.append(pipeline.graphs)
        functions.append(pipeline.graph_functions)
    found = {"counts": counts, "eager": pipeline.eager_stages}
    found |= {"functions": functions, "remade": pipeline.remade_graphs, "rank": pipeline.rank}
    pipeline.close()
    return found


@cache
def outcomes() -> Mapping[int, Any]:
    sent = [(case, compiled(case)) for case in WEIGHTS]
    remats = [(case, remat.planned(case.lever, 2, case.dtype)) for case in REMAT]
    whole = remat.planned("recompute", 2, torch.float32)
    return launch(run, 2, (sent, remats, whole), timeout=280, message_timeout=100)


@pytest.mark.parametrize("at", range(len(ACTIVATIONS)), ids=lambda at: str(ACTIVATIONS[at]))
def test_where_activations_are_sent(at: int) -> None:
    rows = [found[0][at] for found in outcomes().values()]
    assert max(row.difference for row in rows) <= gradients.BOUNDS[FLOAT64]
    last = next(row for row in rows if row.losses)
    assert last.losses == pytest.approx(last.expected_losses, rel=gradients.BOUNDS[FLOAT64])


@pytest.mark.parametrize("at", range(len(WEIGHTS)), ids=lambda at: str(WEIGHTS[at]))
def test_where_weights_are_sent(at: int) -> None:
    case = WEIGHTS[at]
    wanted, parameters, _ = expected(case.dtype, case.stages, case.microbatches)
    for row in (found[1][at] for found in outcomes().values()):
        for name, gradient in row.gradients.items():
            assert difference(gradient, wanted[name]) <= weights.BOUNDS[FLOAT64], name
            assert difference(row.parameters[name], parameters[name]) <= weights.BOUNDS[FLOAT64]


@pytest.mark.parametrize("at", range(len(REMAT)), ids=lambda at: REMAT[at].lever)
def test_what_is_recomputed_or_offloaded(at: int) -> None:
    for row in (found[2][at] for found in outcomes().values()):
        assert row.violations == ()
        assert row.difference <= gradients.BOUNDS[FLOAT64]


def test_each_shape_is_traced_once() -> None:
    for _, _, _, found in outcomes().values():
        assert found["counts"] == [1, 1, 2, 2]
        assert found["eager"] == {}
        assert found["functions"] == [3, 3, 6, 6]
        (why,) = [found["remade"][found["rank"]]]
        assert "made again after the first step, for inputs of [3, " in why


@pytest.mark.parametrize("name", [*graphs.OPTIONS, graphs.REPLICAS])
def test_trained_as_with_modules(name: str) -> None:
    assert [found[3][name] for found in outcomes().values()] == [[], []]


def test_recomputation_of_another_model_is_refused_before_the_first_step() -> None:
    for _, _, _, found in outcomes().values():
        assert re.fullmatch(
            r"(rank \d: )?stage \d: expected a microbatch to hold \d+ bytes until its R, as in the "
            r"program's profile, got \d+: profile this model in these stages and shapes, and plan "
            "again",
            found["refused"],
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_family_that_sends_activations(ranks: int) -> None:
    cases = [replace(c, stages_as="aten") for c in gradients.cases(ranks) if not c.slow]
    found = launch(gradients.run_cases, ranks, (cases,), timeout=860, message_timeout=120)
    for i, case in enumerate(cases):
        assert max(row[i].difference for row in found.values()) <= gradients.BOUNDS[case.dtype]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_schedule_that_sends_weights(ranks: int) -> None:
    cases = [replace(c, stages_as="aten") for c in weights.cases(ranks) if not c.slow]
    sent = [(case, compiled(case)) for case in cases]
    found = launch(weights.run_cases, ranks, (sent,), timeout=860, message_timeout=120)
    for i, case in enumerate(cases):
        wanted, _, _ = expected(case.dtype, case.stages, case.microbatches)
        for name, gradient in (pair for row in found.values() for pair in row[i].gradients.items()):
            assert difference(gradient, wanted[name]) <= weights.BOUNDS[case.dtype], name


@pytest.mark.slow
def test_tensor_parallel_stages() -> None:
    options = (("stages_as", "aten"),)
    cases = [
        meshes.Case("1f1b", TP, options=options),
        meshes.Case("zb-h1", TP, sequence=True, ahead=True, clip=1e-2, options=options),
    ]
    found = launch(meshes.run_cases, 4, (cases,), timeout=280, message_timeout=100)
    for outcome in (outcome for row in found.values() for outcome in row):
        assert outcome.gradients <= 1e-12
        assert outcome.parameters <= 1e-12


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_stages() -> None:
    found = launch(gradients.run_cases, 2, ([COMPILED],), timeout=860, message_timeout=600)
    assert max(row[0].difference for row in found.values()) <= 1e-5
