"""The files that ``plan`` writes to run a plan: profile, schedule and program, and the flags and
layouts of other systems."""

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
from ..models.run import Recompute, Sharding, TrainingRun
from ..models.work import LayerWork, WorkKind
from ..packaged import packaged
from ..prediction.step import PredictedStep

_ENDS = {
    WorkKind.EMBEDDING: Layer(
        "embedding", LayerKind.EMBEDDING, ("model.embed_tokens", "model.rotary_emb")
    ),
    WorkKind.HEAD: Layer("head", LayerKind.HEAD, ("model.norm", "lm_head")),
}
"""Embedding and head, with the module names that Llama and similar models have in ``transformers``;
``run`` expects them."""
SYSTEMS: dict[str, list[list[str]]] = packaged(__package__, "systems.json")
"""Flags of other systems, and notes on what flags cannot express, by the name of a table. Each is a
pair: a line of text, and names of properties of a training run, separated by spaces. :func:`_lines`
returns the line if the run has at least one of these properties."""
TO_MEGATRON = "--schedule 1f1b or --schedule interleaved-1f1b plans for what Megatron runs"


def write_files(folder: Path, step: PredictedStep, schedule: Schedule) -> list[str]:
    """Write the files that run a schedule into ``folder``, which must exist.

    They are ``profile.json``, ``schedule.json`` and ``program.json``, and input files for
    torchtitan and Megatron, each with a file of its flags. An input file that cannot express the
    schedule is not written. The program averages gradients over replicas. Returns notes: the time
    of an iteration, what flags cannot express, and why input files are missing. Raises OSError if a
    file cannot be written.
    """
    run = step.setup.run
    named = timed(_with_layers(step, schedule))
    program = compile_schedule(named, data_parallel=run.dp > 1)
    write_json(dump_profile(named.problem.profile), str(folder / "profile.json"))
    write_json(dump_schedule(named), str(folder / "schedule.json"))
    write_json(dump_program(program), str(folder / "program.json"))
    untied = [] if step.setup.model.tied else [UNTIED]
    systems = {
        "torchtitan.csv": ("torch-csv", _lines("torchtitan", run)),
        "torchtitan.json": ("torchtitan", _lines("torchtitan", run)),
        "megatron.txt": ("megatron-layout", _lines("megatron", run) + untied),
    }
    iteration = duration(named.known_timing.iteration_time(named.problem.objective))
    notes = [f"schedule.json: {iteration} an iteration; the optimizer and the host come on top"]
    notes += _lines("notes", run)
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


def _lines(table: str, run: TrainingRun) -> list[str]:
    """Return the lines of ``table`` in ``systems.json`` that apply to ``run``.

    A line applies if ``run`` has at least one of the properties that the table lists for it.
    """
    fsdp, sharded = run.sharding is Sharding.FSDP, run.sharding is not Sharding.NONE
    again, divided = run.recompute, sharded or run.ep > 1
    inner = [f"{key} {getattr(run, key)}" for key in ("tp", "cp", "ep") if getattr(run, key) > 1]
    holds = {
        "": True,
        run.precision.value: True,
        run.sharding.value: True,
        again.value: True,
        "inner": bool(inner),
        "divided": divided,
        "divided-kept": divided and not fsdp,
        "whole": not divided,
        "ep": run.ep > 1,
        "etp": run.etp != run.tp,
        "etp-alone": run.etp != run.tp and run.ep == 1,
        "sequence-parallel": run.sequence_parallel,
        "selective-kept": again is Recompute.SELECTIVE and not fsdp,
        "sharded": sharded and run.dp > 1,
        "scattered": run.pp == 1 and run.microbatches > 1 and run.sharding is Sharding.ZERO1,
    }
    return [
        line.format(run=run, inner=", ".join(inner))
        for line, needed in SYSTEMS[table]
        if any(holds.get(word, False) for word in needed.split(" "))
    ]
