"""What the tests of saved state run on every rank: a pipeline saved, and others that go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from examples.gpt import GPT
from pipeloom import InputError, Pipeline
from pipeloom.compiler import compile_schedule
from tests.support.schedules import schedule

RANKS, MICROBATCHES, STEPS = 2, 4, 2


@dataclass(frozen=True)
class Model(GPT):
    """Four small blocks, embedding and head tied, in float64, by Adam."""

    layers: int = 4
    width: int = 16
    heads: int = 2
    context: int = 8
    microbatch: int = 1
    tie_weights: bool = True
    dtype: torch.dtype = torch.float64

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.learning_rate)


MODEL = Model()
Losses: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Outcome:
    """On one rank. ``whole``: losses without a break; ``sharded``: those of other pipelines, and
    after breaks; ``said``: what was refused, by case; ``names``: keys of a state."""

    whole: Losses
    sharded: tuple[Losses, Losses]
    said: dict[str, str]
    names: frozenset[str]


def make(family: str, *, model: Model | None = None, **options: Any) -> Pipeline:
    plan = schedule(family, RANKS, MICROBATCHES)
    model = model or MODEL
    tied = [sorted({s for s, _ in group}) for group in model.tied(plan.problem.stages)]
    program = compile_schedule(plan, tied=tied)
    return Pipeline.from_source(program, model, verify=dist.get_rank() == 0, **options)


def steps(pipeline: Pipeline, first: int, count: int = STEPS) -> Losses:
    history = []
    for step in range(first, first + count):
        inputs, targets = MODEL.batch(step, pipeline.microbatches)
        losses: list[Tensor] = []
        pipeline.step(inputs, target=targets, losses=losses)
        rows = pipeline.gather([loss.item() for loss in losses])
        history.append(sum(sorted(loss for row in rows for loss in row)) / MICROBATCHES)
    return tuple(history)


def run_cases(folder: str) -> Outcome:
    pipeline = make("chimera")
    first = steps(pipeline, 0)
    dcp.save({"pipeline": pipeline}, checkpoint_id=f"{folder}/chimera")
    state = pipeline.state_dict()
    names = frozenset(f"{section}.{key}" for section, values in state.items() for key in values)
    whole = first + steps(pipeline, STEPS)
    pipeline.close()
    return Outcome(whole, sharded(folder), refused(), names)


def sharded(folder: str) -> tuple[Losses, Losses]:
    """Two replicas of one rank, in shards, without a break; then these as a pipeline, as one rank
    whose blocks are tensor parallel, and as shards again."""
    model = replace(MODEL, tie_weights=False)
    first = make_sharded(model)
    steps(first, 0)
    dcp.save({"pipeline": first}, checkpoint_id=f"{folder}/shards0")
    whole = steps(first, STEPS, 3 * STEPS)
    first.close()
    found: Losses = ()
    ways = partial(make, "zb-v"), make_parallel, make_sharded
    for i, make_one in enumerate(ways):
        pipeline = make_one(model=model)
        dcp.load({"pipeline": pipeline}, checkpoint_id=f"{folder}/shards{i}")
        found += steps(pipeline, (i + 1) * STEPS)
        dcp.save({"pipeline": pipeline}, checkpoint_id=f"{folder}/shards{i + 1}")
        pipeline.close()
    return whole, found


def make_parallel(model: Model) -> Pipeline:
    """One rank of two processes, which have shards of its blocks' products."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "pp"))
    (stage,) = model.stages(1)
    module = stage()
    for i in range(1, 1 + model.layers):
        plan = {f"{i}.widen": ColwiseParallel(), f"{i}.narrow": RowwiseParallel()}
        parallelize_module(module, mesh["tp"], plan)
    return one_rank(model, module, mesh)


def one_rank(model: Model, module: nn.Module, mesh: DeviceMesh, **options: Any) -> Pipeline:
    plan = schedule("1f1b", 1, MICROBATCHES)
    return Pipeline(
        compile_schedule(plan, data_parallel=bool(options)),
        [module],
        loss=model.loss,
        optimizer=model.optimizer,
        names=model.names(1),
        group=mesh["pp"].get_group(),
        **options,
    )


def make_sharded(model: Model) -> Pipeline:
    """Both processes train on the same, so that the average is that of one."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    (stage,) = model.stages(1)
    module = stage()
    fully_shard(module, mesh=mesh["dp"])
    return one_rank(model, module, mesh, data_group=mesh["dp"].get_group())


def refused() -> dict[str, str]:
    """What pipelines say of names and states that do not fit."""
    pipeline = make("1f1b")
    state = pipeline.state_dict()
    some = next(iter(state["model"]))
    moment = next(key for key in state["optimizer"] if key.endswith(".exp_avg"))

    def without(section: str, key: str) -> dict[str, Any]:
        return state | {section: {k: v for k, v in state[section].items() if k != key}}

    cases = {
        "missing": without("model", some),
        "unknown": state | {"model": state["model"] | {"other.weight": torch.zeros(1)}},
        "shape": state | {"model": state["model"] | {some: torch.zeros(3)}},
        "moment": without("optimizer", moment),
        "section": {"models": {}},
        "nothing": {},
    }
    rank = dist.get_rank()
    cases["no mapping"] = state | {"model": None} if rank == 1 else state
    cases["no state"] = None if rank == 1 else state
    said = {name: refusal(partial(pipeline.load_state_dict, case)) for name, case in cases.items()}
    pipeline.close()
    made: dict[str, dict[str, Any]] = {
        "colliding": {"names": lambda s, n: n},
        "nameless": {"names": lambda s, n: None},
        "raising": {"names": raising},
        "closure": {"optimizer": torch.optim.LBFGS if rank == 1 else torch.optim.SGD},
    }
    for name, options in made.items():
        other = make("1f1b", **options)
        said[name] = refusal(other.state_dict)
        assert refusal(other.state_dict) == said[name]
        other.close()
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "pp"))
    tp = mesh["tp"].get_group()
    for name, groups in {"beside": None, "shards": {"*.widen.weight": tp}}.items():
        other = Pipeline.from_source(
            compile_schedule(schedule("1f1b", 1, MICROBATCHES)),
            MODEL,
            group=mesh["pp"].get_group(),
            norm_groups=groups,
        )
        said[name] = refusal(other.state_dict)
        other.close()
    return said


def raising(stage: int, name: str) -> str:
    if stage == 1:
        raise KeyError(name)
    return f"{stage}.{name}"


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except InputError as error:
        return str(error)
    return "nothing"
