"""Weights, gradients and optimizer states of a rank, and what replicas exchange."""

from __future__ import annotations

import pytest

from pipeloom.planner.models.work import Parameters, States, step_collectives
from tests.support.inner import TrainingRun, read_model, states_of, work_of

PARAMETERS = Parameters(1000, 1000.0, 0.0)
MODEL = read_model("mixtral-8x7b")


def states(**keys: object) -> States:
    return states_of(PARAMETERS, TrainingRun.of({"dp": 4, **keys}, MODEL))


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("none", States(2000, 2000, 12000)),
        ("zero1", States(2000, 2000, 3000)),
        ("zero2", States(2000, 500, 3000)),
        ("fsdp", States(1000, 500, 2000, gathered=2000)),
    ],
)
def test_sharding_divides_by_replicas(sharding: str, expected: States) -> None:
    assert states(sharding=sharding, gradients="bf16") == expected


def test_gradients_are_summed_in_float32_by_default() -> None:
    assert states().gradients == 4000


def test_float32_weights_are_their_own_master() -> None:
    assert states(precision="fp32") == States(4000, 4000, 8000)


def test_experts_have_the_replicas_that_expert_parallelism_leaves() -> None:
    run = TrainingRun.of({"dp": 8, "ep": 4, "sharding": "zero1"}, MODEL)
    assert (run.dense_replicas, run.expert_replicas) == (8, 2)
    assert states_of(Parameters(16, 0.0, 16.0), run).optimizer == 12 * 16 / 2


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("none", [("all-reduce", "dp", 4), ("all-reduce", "edp", 4)]),
        ("zero1", [("all-gather", "dp", 2), ("reduce-scatter", "dp", 4)] * 2),
        ("fsdp", [("all-gather", "dp", 2)] * 2 + [("reduce-scatter", "dp", 4)]),
    ],
)
def test_replicas_exchange(sharding: str, expected: list[tuple[str, str, int]]) -> None:
    run = TrainingRun.of({"dp": 8, "ep": 4, "sharding": sharding}, MODEL)
    layer = work_of(MODEL, run).layers[1].parameters
    found = step_collectives(layer, run)
    kinds = [
        (x.kind, x.group, x.bytes / (layer.dense if x.group == "dp" else layer.expert))
        for x in found
    ]
    dense = [kind for kind in kinds if kind[1] == "dp"]
    experts = [(kind, "dp", each) for kind, group, each in kinds if group == "edp"]
    assert dense == [kind for kind in expected if kind[1] == "dp"][: len(dense)]
    assert [(k, e) for k, _, e in experts] == [(k, e) for k, _, e in dense]
    assert {(x.group, x.size) for x in found} == {("dp", 8), ("edp", 2)}
