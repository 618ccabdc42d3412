"""What the tests of saved state run on every rank: a pipeline saved, and others that go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from examples.gpt import GPT
from pipeloom import InputError, LossScale, Pipeline
from pipeloom.compiler import compile_schedule
from pipeloom.runtime.stages.store import made
from pipeloom.runtime.transport import whereabouts
from tests.distributed.cases.gradients import schedule

RANKS, MICROBATCHES, STEPS = 2, 4, 2
# what goes on, by what was saved: activations and weights sent, copies on two ranks, V, others
PAIRS = {
    "1f1b": "zb-v",
    "zb-v": "chimera",
    "chimera": "weipipe-interleave",
    "weipipe-interleave": "interleaved-1f1b",
    "interleaved-1f1b": "1f1b",
}


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
    """On one rank. ``whole``: losses without a break, by family; ``resumed``: those after it, by
    what was saved; ``clipped``, ``sharded`` and ``alike``: both of other pipelines; ``said``: what
    was refused, by case; ``names``: keys of a state."""

    whole: dict[str, Losses]
    resumed: dict[str, Losses]
    clipped: tuple[Losses, Losses]
    sharded: tuple[Losses, Losses]
    alike: tuple[Losses, Losses]
    said: dict[str, str]
    names: frozenset[str]


def make(
    family: str, *, relays: bool = False, model: Model | None = None, **options: Any
) -> Pipeline:
    plan = schedule(family, RANKS, MICROBATCHES)
    model = model or MODEL
    tied = [sorted({s for s, _ in group}) for group in model.tied(plan.problem.stages)]
    program = compile_schedule(plan, tied=tied, post_validation=relays)
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
    torch.set_num_threads(1)
    whole, resumed = {}, {}
    for family in PAIRS:
        pipeline = make(family)
        first = steps(pipeline, 0)
        dcp.save({"pipeline": pipeline}, checkpoint_id=f"{folder}/{family}")
        whole[family] = first + steps(pipeline, STEPS)
        pipeline.close()
    for saved, family in PAIRS.items():
        pipeline = make(family)
        dcp.load({"pipeline": pipeline}, checkpoint_id=f"{folder}/{saved}")
        resumed[saved] = steps(pipeline, STEPS)
        pipeline.close()
    return Outcome(
        whole, resumed, clipped(folder), sharded(folder), alike(folder), refused(), names()
    )


def clipped(folder: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Each step clipped, ahead of the norm or not, with a loss scale: without a break, and with."""
    options: dict[str, Any] = {"clip_grad_norm": 1e-2, "loss_scale": LossScale(64.0, interval=2)}
    pipeline = make("1f1b", relays=True, **options)
    first = steps(pipeline, 0, 3)  # the verdict on the last is still to come
    dcp.save({"pipeline": pipeline}, checkpoint_id=f"{folder}/clipped")
    whole = steps(pipeline, 3)
    pipeline.close()
    assert first != whole
    other = make("zb-v", **(options | {"loss_scale": LossScale(2.0, interval=2)}))
    dcp.load({"pipeline": other}, checkpoint_id=f"{folder}/clipped")
    scale = other.loss_scale
    resumed = steps(other, 3)
    other.close()
    assert scale is not None
    assert (scale.scale, scale.good) == (128.0, 1)
    return whole, resumed


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
    return Pipeline(
        compile_schedule(schedule("1f1b", 1, MICROBATCHES)),
        [module],
        loss=model.loss,
        optimizer=model.optimizer,
        names=model.names(1),
        group=mesh["pp"].get_group(),
    )


def alike(folder: str) -> tuple[Losses, Losses]:
    """Weights that are stashed, then weights that are computed with in float32: both losses of
    each, without a break and with one."""
    found: list[Losses] = []
    for family, options in {
        "pipedream": {"model": replace(MODEL, tie_weights=False)},
        "weipipe-interleave": {"param_dtype": torch.float32},
    }.items():
        pipeline = make(family, **options)
        steps(pipeline, 0)
        dcp.save({"pipeline": pipeline}, checkpoint_id=f"{folder}/alike-{family}")
        whole = steps(pipeline, STEPS)
        pipeline.close()
        pipeline = make(family, **options)
        dcp.load({"pipeline": pipeline}, checkpoint_id=f"{folder}/alike-{family}")
        found += [whole, steps(pipeline, STEPS)]
        pipeline.close()
    return found[0] + found[2], found[1] + found[3]


def make_sharded(model: Model) -> Pipeline:
    """Both processes train on the same, so that the average is that of one."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    program = compile_schedule(schedule("1f1b", 1, MICROBATCHES), data_parallel=True)
    (stage,) = model.stages(1)
    module = made(stage, 0)
    fully_shard(module, mesh=mesh["dp"])
    return Pipeline(
        program,
        [module],
        loss=model.loss,
        optimizer=model.optimizer,
        names=model.names(1),
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group(),
    )


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
    said = {name: refusal(partial(pipeline.load_state_dict, case)) for name, case in cases.items()}
    pipeline.close()
    for name, told in {"colliding": lambda s, n: n, "nameless": lambda s, n: None}.items():
        other = make("1f1b", names=told)
        said[name] = refusal(other.state_dict)
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
