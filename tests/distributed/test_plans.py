"""Plans, scaled down to a small model on four ranks: each schedule trains as one process does. A
model by its name, from the profile to a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipeloom
from pipeloom import Pipeline
from pipeloom.ir import OpKind, Program, Schedule
from pipeloom.planner import Plan
from pipeloom.runtime import load_source
from tests.support.hub import on_threads, own
from tests.support.models import stepped

hugging = pytest.importorskip("transformers")

RUN: dict[str, Any] = {"gpus": 4, "pp": 4, "global_batch": 8, "micro_batch": 1, "seq": 16}
SHORT: dict[str, Any] = {
    **{"format": "pipeloom.cluster", "version": 1, "gpus_per_node": 4, "host": "nvlink-c2c"},
    **{"inside": "nvlink4", "between": "ethernet-100g"},
    "gpu": {
        **{"name": "small", "teraflops": {"fp32": 100, "bf16": 100}, "memory_gib": 1.63e-4},
        **{"gigabytes_per_second": 1000, "multiprocessors": 100},
    },
    "efficiency": {"context_gib": 1e-9, "fragmentation": 1e-9},
}
"""Of memory for fewer microbatches than 1F1B holds of :func:`model`."""
NARROW: dict[str, Any] = {"cluster": SHORT, "precision": "fp32", "vp": 1}
MORE: dict[str, dict[str, Any]] = {
    "zb-h2 cut": {"schedule": "zb-h2", "layers_per_stage": (2, 3, 2, 1)},
    "recomputed": NARROW | {"recompute": "auto"},
    "offloaded": NARROW | {"recompute": "none", "offload": "auto"},
    "weights": {"passing": "weights", "work_limit": 20},
    "weights and replicas": {"passing": "weights", "pp": 2, "dp": 2, "work_limit": 20},
    "full": {"recompute": "full", "schedule": "1f1b"},
    "replicas": {"pp": 2, "dp": 2},
    "no pipeline": {"pp": 1, "dp": 4, "sharding": "zero1"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small Llama, with its ``config.json``."""
    folder = tmp_path_factory.mktemp("llama")
    hugging.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=8,
        num_attention_heads=2, max_position_embeddings=16
    ).save_pretrained(folder)  # fmt: skip
    return folder


def planned(model: str | dict[str, Any], given: dict[str, Any]) -> Plan:
    words = {"cluster": "H100"} | RUN | given
    limit: dict[str, Any] = {} if "work_limit" in given else {"time_limit": 2.0}
    return pipeloom.plan(model, **words, **limit)


def name_of(model: Path) -> str:
    return f"hf:{model},seq=16,micro_batch=1,lr=0.01"


def program(model: Path, given: dict[str, Any]) -> Program:
    """Read from the files of the plan."""
    planned(str(model), given).write(model / "plan")
    return pipeloom.load_program(str(model / "plan" / "program.json"))


def test_the_chosen_plan_trains_as_1f1b_does(model: Path) -> None:
    """The second step's loss is that of the weights that the first has made."""
    ours, theirs = (
        on_threads(_losses, 4, (program(model, given), name_of(model)))
        for given in ({}, {"schedule": "1f1b"})
    )
    assert max(ours.values()) == pytest.approx(max(theirs.values()), rel=1e-4)
    assert len(max(ours.values())) == 2


def _losses(program: Program, name: str) -> list[float]:
    """The mean losses of two steps, on the rank of the last stage."""
    source, history = load_source(name), []
    pipeline = Pipeline.from_source(program, source, transport=own())
    for step in range(2):
        losses = stepped(pipeline, source, step)
        history += [sum(losses) / len(losses)] if losses else []
    pipeline.close()
    return history


@pytest.fixture(scope="module")
def losses(model: Path) -> tuple[float, ...]:
    return trained(model, {"schedule": "1f1b"})


def trained(model: Path, given: dict[str, Any]) -> tuple[float, ...]:
    recompute = ",recompute=full" * (given.get("recompute") == "full")
    result = pipeloom.run(program(model, given), name_of(model) + recompute, steps=2)
    assert result is not None
    return tuple(result.losses)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_plans_do(model: Path, losses: tuple[float, ...], name: str) -> None:
    own = trained(model, MORE[name])
    assert own == pytest.approx(losses, rel=1e-4)
    schedule = pipeloom.load_schedule(str(model / "plan" / "schedule.json"))
    for kind, wanted in ((OpKind.R, "recomputed"), (OpKind.O, "offloaded")):
        assert (_ops(schedule, kind) > 0) is (name == wanted)


def _ops(schedule: Schedule, kind: OpKind) -> int:
    return sum(op.kind is kind for r in range(schedule.problem.ranks) for op in schedule.ops(r))


MODEL = hugging.GPT2Config(
    vocab_size=64, n_embd=16, n_layer=4, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
)


@pytest.mark.usefixtures("here")
def test_a_model_is_measured_planned_and_trained_by_its_name(tmp_path: Path) -> None:
    """In near even stages, embedding and head tied."""
    MODEL.save_pretrained(tmp_path)
    name = f"hf:{tmp_path},lr=0.01"
    found = pipeloom.measure(f"{name},micro_batch=2", ranks=1, repeats=1, warmup=0, stages=2)
    answer = pipeloom.optimize(found.document(), 4, placement="v", work_limit=0.1)
    program = pipeloom.compile(answer.schedule)
    assert pipeloom.run(program, name, steps=1) is not None
    model = hugging.AutoModelForCausalLM.from_config(MODEL)
    names = on_threads(_names, 1, (program, name), timeout=60)
    assert names[0] == set(model.state_dict())


def _names(program: Program, name: str) -> set[str]:
    pipeline = Pipeline.from_source(program, load_source(name), transport=own())
    found = set(pipeline.state_dict()["model"])
    pipeline.close()
    return found
