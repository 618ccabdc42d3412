"""The files that ``plan`` writes to run a plan: profile, schedule and program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.gradient_averaging import share_until
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats import dump_profile, dump_program, dump_schedule, write_json
from pipeloom.ir.model.layers import Layer, LayerKind
from pipeloom.ir.model.profile import DataParallel
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration

from ..models.run import Recompute, Sharding, TrainingRun
from ..models.work import LayerWork, WorkKind
from ..prediction.step import PredictedStep

_ENDS = {
    WorkKind.EMBEDDING: Layer(
        "embedding", LayerKind.EMBEDDING, ("model.embed_tokens", "model.rotary_emb")
    ),
    WorkKind.HEAD: Layer("head", LayerKind.HEAD, ("model.norm", "lm_head")),
}
"""Embedding and head, with the module names that Llama and similar models have in ``transformers``;
``run`` expects them."""


def write_files(folder: Path, step: PredictedStep, schedule: Schedule) -> list[str]:
    """Write the files that run a schedule into ``folder``, which must exist.

    They are ``profile.json``, ``schedule.json`` and ``program.json``. The program averages
    gradients over replicas. Returns notes: the time of an iteration, and what the program leaves to
    the model. Raises OSError if a file cannot be written.
    """
    run = step.setup.run
    named = timed(_with_layers(step, schedule))
    program = compile_schedule(named, data_parallel=run.dp > 1)
    write_json(dump_profile(named.problem.profile), str(folder / "profile.json"))
    write_json(dump_schedule(named), str(folder / "schedule.json"))
    write_json(dump_program(program), str(folder / "program.json"))
    iteration = duration(named.known_timing.iteration_time(named.problem.objective))
    notes = [f"schedule.json: {iteration} an iteration; the optimizer and the host come on top"]
    return [*notes, *_left_to_the_model(run)]


def _with_layers(step: PredictedStep, schedule: Schedule) -> Schedule:
    """Return the schedule with a profile that also gives the layers of each stage, tied weights and
    replicas."""
    numbers, setup = count(), step.setup
    layers = tuple(tuple(_layer(work, numbers) for work in works) for works in setup.work.stages)
    profile = schedule.problem.profile
    stages = tuple(replace(s, layers=own) for s, own in zip(profile.stages, layers, strict=True))
    ends = ((0, len(stages) - 1),) if setup.model.tied and len(stages) > 1 else ()
    # predictions assume a barrier before the optimizer step
    named = replace(
        profile, stages=stages, micro_batch=setup.run.micro_batch, tied=ends, barrier=True
    )
    return _with_replicas(step, replace(schedule, problem=replace(schedule.problem, profile=named)))


def _with_replicas(step: PredictedStep, schedule: Schedule) -> Schedule:
    """Return the schedule with replicas in its profile, or ``schedule`` itself if there is a single
    replica.

    The factor ``exposed``, by which the times of averaging are scaled, is chosen such that an
    iteration takes as long as the predicted step without the optimizer.
    """
    if step.setup.run.dp == 1:
        return schedule
    replicas = DataParallel(step.setup.run.dp, step.replica_link)
    whole = _over(schedule, replicas)
    share = share_until(whole, schedule.known_timing, step.averaged)
    return _over(schedule, replace(replicas, exposed=share))


def _over(schedule: Schedule, replicas: DataParallel) -> Schedule:
    profile = replace(schedule.problem.profile, data_parallel=replicas)
    return replace(schedule, problem=replace(schedule.problem, profile=profile))


def _layer(work: LayerWork, numbers: Iterator[int]) -> Layer:
    if work.kind in _ENDS:
        return _ENDS[work.kind]
    number = next(numbers)
    kind = LayerKind.MTP if work.kind is WorkKind.MTP else LayerKind.BLOCK
    return Layer(f"model.layers.{number}", kind, (f"model.layers.{number}",))


def _left_to_the_model(run: TrainingRun) -> Iterator[str]:
    """Yield notes on the settings of ``run`` that a program does not have."""
    inner = [f"{key} {getattr(run, key)}" for key in ("tp", "cp", "ep") if getattr(run, key) > 1]
    if inner:
        yield (
            "program.json: each rank is one process; the stages of the model must implement "
            f"{', '.join(inner)} themselves"
        )
    if run.recompute is Recompute.FULL:
        yield (
            "program.json: layers are to be computed again by the model: hf:FOLDER,recompute=full"
        )
    if run.recompute is Recompute.SELECTIVE:
        yield "program.json: the model is to compute attention's core (core_attn) again by itself"
    if run.sharding is not Sharding.NONE and run.dp > 1:
        yield (
            f"program.json: states are divided ({run.sharding}) where stages are in fully_shard; "
            "run keeps them whole on each replica"
        )
