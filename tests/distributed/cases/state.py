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
from pipeloom.runtime.stages.store import made
from pipeloom.runtime.transport import whereabouts
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
    after breaks; ``said``: what was refused, by case; ``names``: keys of a state; ``buffers``:
    values of each buffer, and evaluations before and after a load, by family; ``replicas``:
    the same of replicas."""

    whole: Losses
    sharded: tuple[Losses, Losses]
    said: dict[str, str]
    names: frozenset[str]
    buffers: dict[str, Buffers]
    replicas: Buffers


@dataclass(frozen=True)
class Buffers:
    """``apart``: buffers that trained otherwise on several ranks, ``left``: that differ in a state;
    ``whole`` and ``resumed``: evaluations after the state was made, and of it loaded."""

    apart: int
    left: int
    whole: Losses
    resumed: Losses


def make(family: str, *, model: Model | None = None, **options: Any) -> Pipeline:
    plan = schedule(family, RANKS, MICROBATCHES)
    model = model or MODEL
    tied = [sorted({s for s, _ in group}) for group in model.tied(plan.problem.stages)]
    program = compile_schedule(plan, tied=tied)
    rank, _ = whereabouts()
    return Pipeline.from_source(program, model, verify=rank == 0, **options)


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
    whole = first + steps(pipeline, STEPS)
    pipeline.close()
    found = sharded(folder), refused(), names()
    buffers = {family: one_value(partial(normed, family)) for family in ("chimera", "1f1b")}
    return Outcome(whole, *found, buffers, one_value(normed_replica))


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
    module = made(stage, 0)
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
    module = made(stage, 0)
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
    rank, _ = whereabouts()
    cases["no mapping"] = state | {"model": None} if rank == 1 else state
    cases["no state"] = None if rank == 1 else state
    said = {name: refusal(partial(pipeline.load_state_dict, case)) for name, case in cases.items()}
    pipeline.close()
    for name, told in {"colliding": lambda s, n: n, "nameless": lambda s, n: None}.items():
        other = make("1f1b", names=told)
        said[name] = refusal(other.state_dict)
        other.close()
    other = make("1f1b", names=raising)
    said["raising"] = refusal(other.state_dict)
    said["raising again"] = refusal(other.state_dict)
    other.close()
    other = make("1f1b", optimizer=torch.optim.LBFGS if rank == 1 else torch.optim.SGD)
    said["closure"] = refusal(other.state_dict)
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


def names() -> frozenset[str]:
    """Keys of the state of a pipeline, section and all."""
    pipeline = make("zb-v")
    state = pipeline.state_dict()
    pipeline.close()
    return frozenset(f"{section}.{key}" for section, values in state.items() for key in values)


def norms(count: int, seed: int) -> list[nn.Module]:
    torch.manual_seed(seed)
    return [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double() for _ in range(count)]


def normed(family: str, seed: int) -> Pipeline:
    """Stages that end in batch norms, each with other means than its copies."""
    plan = schedule(family, RANKS, MICROBATCHES)
    return Pipeline(
        compile_schedule(plan),
        norms(plan.problem.stages, seed),
        loss=nn.functional.mse_loss,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        names=lambda stage, name: f"{stage}.{name}",
    )


def normed_replica(seed: int) -> Pipeline:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    return Pipeline(
        compile_schedule(schedule("1f1b", 1, MICROBATCHES), data_parallel=True),
        norms(1, seed),
        loss=nn.functional.mse_loss,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group(),
    )


def one_value(make_one: Callable[[int], Pipeline]) -> Buffers:
    """What becomes of buffers that differ when a state is made, and when it is loaded."""
    pipeline = make_one(0)
    torch.manual_seed(7 + dist.get_rank())
    x = torch.randn(16, 4, dtype=torch.float64)
    pipeline.step(x, target=x.flip(1))
    if pipeline.program.schedule.problem.ranks == 1:
        before = differing(pipeline)
        other = compile_schedule(schedule("zb-h1", 1, 2), data_parallel=True)
        pipeline.with_program(other)
        assert differing(pipeline) == before
    apart = differing(pipeline)
    state = pipeline.state_dict()
    left = differing(pipeline)
    rows: list[Any] = [None] * RANKS
    dist.all_gather_object(rows, state)
    whole = evaluated(pipeline)
    pipeline.close()
    resumed = make_one(1)
    merged = {s: {k: v for row in rows for k, v in row[s].items()} for s in state}
    resumed.load_state_dict(merged)
    found = Buffers(apart, left, whole, evaluated(resumed))
    resumed.close()
    return found


def differing(pipeline: Pipeline) -> int:
    """The number of buffers of which processes that run their stage have several values."""
    own = {
        (s, name): buffer
        for s in pipeline.store.stages
        for name, buffer in pipeline.store.module(s).named_buffers()
    }
    rows: list[Any] = [None] * RANKS
    dist.all_gather_object(rows, own)
    return sum(not torch.equal(rows[0][key], rows[1][key]) for key in {*rows[0]} & {*rows[1]})


def evaluated(pipeline: Pipeline) -> Losses:
    torch.manual_seed(5)
    x = torch.randn(16, 4, dtype=torch.float64)
    losses: list[Tensor] = []
    pipeline.eval(x, target=x.flip(1), losses=losses)
    return tuple(loss.item() for loss in losses)
