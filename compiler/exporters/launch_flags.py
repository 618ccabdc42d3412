"""The command-line flags with which another system uses an exported file, and notes on their use.

torchtitan (0.3): https://github.com/pytorch/torchtitan, ``torchtitan/config/configs.py``.
Megatron-LM: https://github.com/NVIDIA/Megatron-LM, ``megatron/training/arguments.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.schedule import Schedule

from .torchtitan import is_wrapped, nested

FILE = "FILE"
"""Placeholder in a flag for the name of the exported file, or for its text."""
UNTIED = "--untie-embeddings-and-output-weights"
# the order of ops is in the CSV; torchtitan needs these names to place stages on ranks
TORCHTITAN_NAMES = {
    PlacementKind.LINEAR: "PipelineScheduleSingle",
    PlacementKind.INTERLEAVED: "PipelineScheduleMulti",
    PlacementKind.V: "ZBVZeroBubble",
}
TORCHTITAN_FAMILIES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B"}
"""The names of torch's schedules, by the pipeloom family with the same order of ops."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Flags, one per line, with :data:`FILE` as placeholder for the exported file; and notes for
    the user, one per line."""

    flags: tuple[str, ...]
    notes: tuple[str, ...] = ()


def for_torch_csv(schedule: Schedule, size: int) -> Launch:
    """The flags and notes for a CSV of ops. ``size``: sequences per microbatch."""
    placement, notes = schedule.problem.placement, _torch_ties(schedule)
    flags = (f"--parallelism.pipeline_parallel_schedule_csv {FILE}", *_batch(schedule, size))
    if (name := TORCHTITAN_NAMES.get(placement.kind)) is None:
        where = "torchtitan places stages round and round or as a V, not"
        how = "torch's _load_csv takes the file, and pipeloom.torch the schedule"
        return Launch((*_degree(schedule), *flags), (f"{where} {placement.name}: {how}", *notes))
    named = f"--parallelism.pipeline_parallel_schedule {name}"
    return Launch((*_degree(schedule), named, *flags), notes)


def for_torchtitan(schedule: Schedule, size: int) -> Launch:
    """The flags and notes for a list of modules by stage. ``size``: sequences per microbatch."""
    family = (schedule.report.family if schedule.report else "").partition(":")[0]
    own = TORCHTITAN_FAMILIES.get(family)
    notes = (
        f"module_fqns_per_model_part has no flag: put the list of {FILE} into the configuration",
        *_named_modules(schedule),
    )
    if own is None:
        more = "the order of ops is in the CSV of --to torch-csv, which has flags of its own"
        return Launch(_degree(schedule), (*notes, more, *_torch_ties(schedule)))
    flags = (f"--parallelism.pipeline_parallel_schedule {own}", *_batch(schedule, size))
    return Launch((*_degree(schedule), *flags), notes + _torch_ties(schedule))


def _named_modules(schedule: Schedule) -> tuple[str, ...]:
    """A tuple with one note on the names of the modules, or an empty tuple.

    There is no note if torchtitan finds all modules under these names without its wrapper of
    Hugging Face models.
    """
    if is_wrapped(schedule):
        return (
            "names are those of torchtitan's transformers_modeling_backend (model.layers.0 is its "
            "layers.0); before 0.3 lm_head was output",
        )
    deep = nested(schedule)
    if deep is None:
        return ()
    return (
        f"torchtitan's splitters know modules at the model's root, not {deep}: the list is for a "
        "splitter of your own",
    )


def for_megatron(schedule: Schedule, size: int) -> Launch:
    """The flags and notes for a pipeline layout. ``size``: sequences per microbatch."""
    problem = schedule.problem
    kinds = [layer.kind for layer in chain.from_iterable(s.layers for s in problem.profile.stages)]
    replicas = problem.profile.data_parallel
    batch = problem.microbatches * size * (1 if replicas is None else replicas.size)
    predicted = kinds.count(LayerKind.MTP)
    flags = [
        f"--pipeline-model-parallel-size {problem.ranks}",
        f"--pipeline-model-parallel-layout '{FILE}'",
        f"--num-layers {kinds.count(LayerKind.BLOCK)}",
        *([f"--mtp-num-layers {predicted}"] if predicted else []),
        f"--micro-batch-size {size}",
        f"--global-batch-size {batch}",
    ]
    tied, ends = problem.profile.tied, (0, problem.stages - 1)
    notes = [
        f"Megatron ties only embedding and head: stages {_stages(group)} share parameters"
        for group in tied
        if group != ends
    ]
    if problem.stages == 1:
        notes.append(f"{UNTIED} if the model does not tie them, which one stage does not show")
    elif ends not in tied:
        flags.append(UNTIED)
        notes.append(f"{UNTIED}, as the profile has none of them tied")
    return Launch(tuple(flags), (*notes, *_other_order(schedule)))


def _other_order(schedule: Schedule) -> tuple[str, ...]:
    """Notes that Megatron runs another schedule on this layout, or cannot run it at all.

    The tuple is empty if neither is so.
    """
    problem = schedule.problem
    chunks = problem.stages // problem.ranks
    runs = "1f1b" if chunks == 1 else f"interleaved-1f1b:{chunks}"
    notes = []
    if schedule.report is None or schedule.report.family not in {runs, runs.partition(":")[0]}:
        notes.append(
            f"Megatron runs {runs} on this layout, not this schedule: optimize --for megatron "
            "plans for that"
        )
    if chunks > 1 and problem.microbatches % problem.ranks:
        notes.append(
            f"Megatron interleaves only a multiple of {problem.ranks} microbatches, got "
            f"{problem.microbatches}"
        )
    return tuple(notes)


def _degree(schedule: Schedule) -> tuple[str, ...]:
    return (f"--parallelism.pipeline_parallel_degree {schedule.problem.ranks}",)


def _batch(schedule: Schedule, size: int) -> tuple[str, ...]:
    return (
        f"--parallelism.pipeline_parallel_microbatch_size {size}",
        f"--training.local_batch_size {schedule.problem.microbatches * size}",
    )


def _torch_ties(schedule: Schedule) -> tuple[str, ...]:
    return tuple(
        f"stages {_stages(group)} share parameters (tied), whose gradients neither torch nor "
        "torchtitan sums: pipeloom.torch does, given tied="
        for group in schedule.problem.profile.tied
    )


def _stages(group: tuple[int, ...]) -> str:
    return " and ".join(map(str, group))
