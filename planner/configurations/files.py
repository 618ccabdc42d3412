"""Files that run a plan: profile, schedule and program, other systems' flags and layouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.exporters.launch_flags import UNTIED
from pipeloom.ir.cost.gradient_averaging import share_until
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_profile, dump_program, dump_schedule, write_json, write_text
from pipeloom.ir.model.layers import Layer, LayerKind
from pipeloom.ir.model.profile import DataParallel
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration

from ..exchange import export
from ..models.precision import Precision
from ..models.run import FULL, Sharding, TrainingRun
from ..models.work import LayerWork, WorkKind
from ..prediction.step import StepTimes

_ENDS = {
    WorkKind.EMBEDDING: Layer(
        "embedding", LayerKind.EMBEDDING, ("model.embed_tokens", "model.rotary_emb")
    ),
    WorkKind.HEAD: Layer("head", LayerKind.HEAD, ("model.norm", "lm_head")),
}
"""The names of ``transformers`` in Llama and its kin, which ``run`` looks for."""
TO_MEGATRON = "--schedule 1f1b or --schedule interleaved-1f1b plans for what Megatron runs"


def write_files(folder: Path, step: StepTimes, schedule: Schedule) -> list[str]:
    """Writes ``profile.json``, ``schedule.json`` and ``program.json``, and for torchtitan and
    Megatron what they read, each with its flags beside it. The program averages over replicas.

    Returns notes: what the flags do not say, and each file that the schedule does not go into.
    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = step.setup.run
    named = timed(_with_layers(step, schedule))
    program = compile_schedule(named, data_parallel=run.dp > 1)
    write_json(dump_profile(named.problem.profile), str(folder / "profile.json"))
    write_json(dump_schedule(named), str(folder / "schedule.json"))
    write_json(dump_program(program), str(folder / "program.json"))
    systems = {
        "torchtitan.csv": ("torch-csv", _torchtitan(run)),
        "torchtitan.json": ("torchtitan", _torchtitan(run)),
        "megatron.txt": ("megatron-layout", _megatron(run, untied=not step.setup.model.tied)),
    }
    iteration = duration(named.known_timing.iteration_time(named.problem.objective))
    notes = [f"schedule.json: {iteration} an iteration; the optimizer and the host come on top"]
    notes += [f"program.json: {note}" for note in _left_to_the_model(run)]
    notes += [f"torchtitan: {note}" for note in _unlike_torchtitan(run)]
    for name, (to, flags) in systems.items():
        try:
            found = export(named, to)
        except InputError as error:
            notes += [f"{name}: {line.removeprefix('schedule: ')}" for line in error.errors]
            notes += [f"{name}: {TO_MEGATRON}"] * (to == "megatron-layout")
            continue
        write_text(found.text, str(folder / name))
        own = [flag for flag in found.flags_of(name) if flag not in flags]
        write_text("\n".join([*flags, *own]) + "\n", str(folder / f"{name}.flags"))
        notes += [f"{name}: {note}" for note in found.notes_of(name) if UNTIED not in note]
    return notes


def _with_layers(step: StepTimes, schedule: Schedule) -> Schedule:
    """The schedule, whose stages say which layers they have, and which share a matrix; with the
    replicas there are."""
    numbers, setup = count(), step.setup
    layers = tuple(tuple(_layer(work, numbers) for work in works) for works in setup.work.stages)
    profile = schedule.problem.profile
    stages = tuple(replace(s, layers=own) for s, own in zip(profile.stages, layers, strict=True))
    ends = ((0, len(stages) - 1),) if setup.model.tied and len(stages) > 1 else ()
    # all ranks of the planned step end before their optimizers step
    named = replace(
        profile, stages=stages, micro_batch=setup.run.micro_batch, tied=ends, barrier=True
    )
    return _with_replicas(step, replace(schedule, problem=replace(schedule.problem, profile=named)))


def _with_replicas(step: StepTimes, schedule: Schedule) -> Schedule:
    """The schedule with the replicas there are, whose averaging is exposed so far that an iteration
    takes what the step does before the optimizer."""
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
    """Tells the parts of the plan that stages have to bring with them, as no program has them."""
    inner = [f"{key} {getattr(run, key)}" for key in ("tp", "cp", "ep") if getattr(run, key) > 1]
    if inner:
        yield f"each rank is one process of a group: {', '.join(inner)} are up to its stages"
    if run.recompute == FULL:
        yield "layers are to be computed again by the model: hf:FOLDER,recompute=full"
    elif run.recompute:
        yield f"the model is to compute {', '.join(sorted(run.recompute))} again by itself"
    if run.sharding is not Sharding.NONE and run.dp > 1:
        yield (
            f"states are divided ({run.sharding}) where stages are in fully_shard; run keeps them "
            "whole on each replica"
        )


_LEVELS = {frozenset[str](): "none", FULL: "full"}
"""Recomputation that torchtitan has a word for."""


def _torchtitan(run: TrainingRun) -> list[str]:
    """With ``never``, whole weights stay on each replica and states alone are divided."""
    divided = run.sharding is not Sharding.NONE or run.ep > 1
    kept = "always" if run.sharding is Sharding.FSDP else "never"
    return [
        f"--parallelism.tensor_parallel_degree {run.tp}",
        f"--parallelism.context_parallel_degree {run.cp}",
        f"--parallelism.data_parallel_{'shard' if divided else 'replicate'}_degree {run.dp}",
        *([f"--parallelism.fsdp_reshard_after_forward {kept}"] if divided else []),
        *([f"--parallelism.expert_parallel_degree {run.ep}"] if run.ep > 1 else []),
        *([f"--parallelism.expert_tensor_parallel_degree {run.etp}"] if run.ep > 1 else []),
        f"--training.seq_len {run.seq}",
        f"--training.global_batch_size {run.global_batch}",
        f"--activation_checkpoint.mode {_LEVELS.get(run.recompute, 'selective')}",
    ]


def _unlike_torchtitan(run: TrainingRun) -> Iterator[str]:
    """Tells what torchtitan does otherwise than the plan."""
    if run.recompute not in _LEVELS and run.sharding is not Sharding.FSDP:
        yield "selective recomputation is another than this plan's"
    if run.pp == 1 and run.microbatches > 1 and run.sharding is Sharding.ZERO1:
        yield "gradients are scattered after each microbatch, in this plan once"
    if run.ep == 1 and run.etp != run.tp:
        yield f"without ep etp is {run.tp}, in this plan {run.etp}"


def _megatron(run: TrainingRun, *, untied: bool) -> list[str]:
    experts = run.ep > 1 or run.etp != run.tp
    return [
        f"--tensor-model-parallel-size {run.tp}",
        *(["--sequence-parallel"] if run.sequence_parallel else []),
        f"--context-parallel-size {run.cp}",
        *([f"--expert-model-parallel-size {run.ep}"] if experts else []),
        *([f"--expert-tensor-parallel-size {run.etp}"] if experts else []),
        f"--seq-length {run.seq}",
        f"--global-batch-size {run.global_batch}",
        *_NUMBERS[run.precision],
        *_SHARDED[run.sharding],
        *_recomputing(run),
        *([UNTIED] if untied else []),
    ]


_NUMBERS = {
    Precision.FP32: (),
    Precision.BF16: ("--bf16",),
    Precision.FP16: ("--fp16",),
    Precision.FP8: ("--bf16", "--fp8-format hybrid"),
    Precision.MXFP8: ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    Precision.NVFP4: ("--bf16", "--fp4-format e2m1"),
}
"""Megatron's own default is fp32."""
_SHARDED = {
    Sharding.NONE: (),
    Sharding.ZERO1: ("--use-distributed-optimizer",),
    Sharding.ZERO2: ("--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads"),
    Sharding.FSDP: ("--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params"),
}


def _recomputing(run: TrainingRun) -> list[str]:
    if run.recompute == FULL:
        flags = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
        return [flags]
    modules = " ".join(sorted(run.recompute))
    return [f"--recompute-granularity selective --recompute-modules {modules}"] if modules else []
