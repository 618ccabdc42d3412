"""Faults of a run as a whole: degrees that do not divide each other, the model or the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeloom.ir.units import counted

from .model import Model

if TYPE_CHECKING:
    from .run import TrainingRun


def faults_of(run: TrainingRun, model: Model) -> Iterator[str]:
    """One line per fault; faults that follow from another one are omitted."""
    widths = [*_faults_of_widths(run, model)]
    yield from widths or _faults_of_degrees(run)
    yield from _faults_of_layers(run, model)
    yield from _faults_of_recompute(run, model)


def _faults_of_degrees(run: TrainingRun) -> Iterator[str]:
    if run.vp > 1 and run.pp == 1:
        yield f"vp: expected 1 where pp is 1, got {run.vp}"
    if run.seq % (run.cp * run.split):
        yield f"seq: expected a multiple of cp x tp = {run.cp * run.split}, got {run.seq}"
    if run.sequence_parallel and run.tp == 1:
        yield "sequence_parallel: expected false where tp is 1, got true"
    if run.cp > 1 and run.attention == "unfused":
        yield f"attention: expected flash where cp is {run.cp}, got unfused"
    inner = run.tp * run.cp * run.dp
    if inner * run.pp != run.gpus:
        degrees = f"{run.tp} x {run.pp} x {run.cp} x {run.dp} = {inner * run.pp}"
        yield f"gpus: expected tp x pp x cp x dp = {degrees}, got {run.gpus}"
        return
    if inner % (run.ep * run.etp):
        yield (
            f"ep: expected ep x etp to divide tp x cp x dp = {inner}, got {run.ep} x {run.etp} "
            "(etp is tp where it is not given)"
        )
    if run.global_batch % (run.dp * run.micro_batch):
        each = f"dp x micro_batch = {run.dp} x {run.micro_batch}"
        yield f"global_batch: expected a multiple of {each}, got {run.global_batch}"


def _faults_of_layers(run: TrainingRun, model: Model) -> Iterator[str]:
    if run.layers > model.layers:
        yield f"layers: expected at most the model's {model.layers}, got {run.layers}"
    elif run.layers_per_stage is None:
        if run.layers < run.stages:
            layers = counted(run.layers, "layer")
            yield f"pp: expected at most one stage per layer, pp x vp <= {layers}, got {run.stages}"
    elif len(run.layers_per_stage) != run.stages or sum(run.layers_per_stage) != run.layers:
        yield (
            f"layers_per_stage: expected {counted(run.stages, 'number')} that sum to {run.layers}, "
            f"or {run.layers + 2} with embedding and head in the first and the last, got "
            f"{list(run.layers_per_stage)}"
        )
    elif 0 in run.layers_per_stage[1:-1]:
        yield (
            "layers_per_stage: expected a layer in each stage between the first and the last, "
            f"got {list(run.layers_per_stage)}"
        )


def _faults_of_widths(run: TrainingRun, model: Model) -> Iterator[str]:
    if model.heads % run.tp:
        yield f"tp: expected a divisor of the {model.heads} heads, got {run.tp}"
    elif max(model.kv_heads, run.tp) % min(model.kv_heads, run.tp):
        heads = f"{model.kv_heads} heads of keys and values"
        yield f"tp: expected a divisor or a multiple of the {heads}, got {run.tp}"
    if model.experts is None:
        if run.ep > 1:
            yield f"ep: expected 1, {model.name} has no experts, got {run.ep}"
        if run.etp != run.tp:
            yield f"etp: expected tp, as {model.name} has no experts, got {run.etp}"
        return
    if run.tp > 1 and not run.sequence_parallel:
        yield f"sequence_parallel: expected true where {model.name} has experts and tp is {run.tp}"
    if model.experts.count % run.ep:
        yield f"ep: expected a divisor of the {model.experts.count} experts, got {run.ep}"


def _faults_of_recompute(run: TrainingRun, model: Model) -> Iterator[str]:
    need = {"moe": model.experts, "moe_act": model.experts, "mla_up_proj": model.latent}
    need["shared_experts"] = model.experts if model.experts and model.experts.shared_width else None
    for module in sorted(run.recompute & {key for key, part in need.items() if part is None}):
        yield f"recompute: {module}: {model.name} has none"
