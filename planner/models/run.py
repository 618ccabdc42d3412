"""A run: parallel degrees, batch and memory savings, validated.

The keys are those of published measurements and of ``predict``. Values that are absent, null, ``?``
or ``not stated`` have the defaults that :class:`TrainingRun` documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from pipeloom.ir.errors import InputError

from .model import Model
from .precision import Precision
from .run_faults import faults_of
from .words import RunValues

MODULES = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj", "shared_experts")
"""Modules that can be recomputed separately, named as in Megatron's ``--recompute-modules``."""
FULL = frozenset({"full"})
SELECTIVE = frozenset({"core_attn"})
"""Selective recomputation as in Megatron; with ``fsdp`` it is torchtitan's
(:mod:`.layers.every_second`)."""
_RECOMPUTE = {"none": frozenset[str](), "selective": SELECTIVE, "full": FULL}


class Sharding(StrEnum):
    """The states that data parallel ranks shard (Rajbhandari et al., 2020, section 5).

    ``zero1``: optimizer states; ``zero2``: also gradients; ``fsdp``: also weights (ZeRO-3).
    """

    NONE = "none"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    FSDP = "fsdp"


class AttentionKernel(StrEnum):
    """``flash`` stores no matrix of scores (Dao et al., 2022); ``unfused`` writes and reads it."""

    FLASH = "flash"
    UNFUSED = "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A validated run; use :meth:`of` to make one.

    ``gpu``: the cluster's name, not validated here. ``gpus`` = tp x pp x dp x cp; ``dp`` follows
    from the others by default. ``etp``: tensor parallel degree within an expert, by default tp.
    ``layers``: by default the model's; may be fewer. ``layers_per_stage``: one number per stage (pp
    x vp), not counting embedding and head; None: evenly divided. ``micro_batch``: 1.
    ``global_batch``: one microbatch per replica, or 4 pp if pp > 1. ``seq``: 4096, or the model's
    maximum length if that is less. ``precision``: bf16. ``recompute``: a set of modules,
    ``{"full"}``, or empty (the default). ``sequence_parallel``: by default if tp > 1. ``sharding``:
    none. ``schedule``: 1f1b, or interleaved-1f1b if vp > 1. ``attention``: flash. ``gradients``:
    the format in which they are summed, fp32 as in Megatron and FSDP. ``fused_cross_entropy``:
    false, so that logits are kept in float32. ``compile``: whether a compiler fuses elementwise
    kernels, false; the work is counted the same.
    """

    gpu: str | None = None
    gpus: int = 1
    tp: int = 1
    pp: int = 1
    vp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    seq: int = 4096
    precision: Precision = Precision.BF16
    recompute: frozenset[str] = frozenset()
    sequence_parallel: bool = False
    sharding: Sharding = Sharding.NONE
    layers: int = 1
    layers_per_stage: tuple[int, ...] | None = None
    schedule: str = "1f1b"
    attention: AttentionKernel = AttentionKernel.FLASH
    gradients: Precision = Precision.FP32
    fused_cross_entropy: bool = False
    compile: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any], model: Model) -> TrainingRun:
        """The run that ``given`` describes for ``model``.

        Raises InputError with one line per fault: an unknown key, an invalid value, or degrees that
        do not divide each other, the GPUs, the model or the batch.
        """
        values = RunValues(given, (*KEYS, *ALSO))
        run = cls(**values_of(values, model))
        values.raise_faults()
        run = _with_degrees(run, values)
        values.raise_faults()
        if faults := list(faults_of(run, model)):
            raise InputError(*faults)
        return run

    @property
    def microbatches(self) -> int:
        """Microbatches per replica and step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def stages(self) -> int:
        return self.pp * self.vp

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on one rank; context parallelism divides them."""
        return self.micro_batch * self.seq / self.cp

    @property
    def split(self) -> int:
        """Number of ranks that divide norms and residuals: tp with sequence parallelism, else 1."""
        return self.tp if self.sequence_parallel else 1

    @property
    def dense_replicas(self) -> int:
        """Number of ranks with the same parameters, except experts: the size of group DP."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """Number of ranks with the same experts: the size of group EDP."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def layers_by_stage(self) -> tuple[int, ...]:
        """Decoder layers of each stage, in forward order. If uneven, the first stages have one
        more."""
        if self.layers_per_stage is not None:
            return self.layers_per_stage
        each, more = divmod(self.layers, self.stages)
        return tuple(each + (stage < more) for stage in range(self.stages))


KEYS = tuple(field.name for field in fields(TrainingRun))
ALSO = ("microbatches", "local_batch")
"""Alternative keys for the batch: number of microbatches, and of sequences, per replica."""


def values_of(values: RunValues, model: Model) -> dict[str, Any]:
    """The value of each field: as given, or its default."""
    of_model = {"seq": min(4096, model.longest or 4096), "layers": model.layers}
    own = {"recompute": _recompute, "layers_per_stage": _by_stage}
    found: dict[str, Any] = {
        each.name: own[each.name](values)
        if each.name in own
        else values.read(each.name, of_model.get(each.name, each.default))
        for each in fields(TrainingRun)
    }
    cut = _without_ends(found["layers_per_stage"], found["layers"])
    return found | {"layers_per_stage": cut, "schedule": found["schedule"].lower()}


def _recompute(values: RunValues) -> frozenset[str]:
    given = values.value("recompute") if values.has("recompute") else "none"
    if isinstance(given, str):
        given = [word.strip() for word in given.lower().split(",")]
        if len(given) == 1 and given[0] in _RECOMPUTE:
            return _RECOMPUTE[given[0]]
    words = [*given] if isinstance(given, Iterable) else [given]
    if not all(word in MODULES for word in words):
        known = f"none, selective, full, or some of {', '.join(MODULES)}"
        return values.wrong(("recompute",), known, frozenset())
    return frozenset(words)


def _by_stage(values: RunValues) -> tuple[int, ...] | None:
    """Parse ``12,14``, a list, or a single number."""
    given = values.value("layers_per_stage")
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given
    parts = [parts] if isinstance(parts, int) else parts
    try:
        found = tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        found = ()
    if not found or min(found) < 0:
        return values.wrong(("layers_per_stage",), "whole numbers >= 0, one per stage", None)
    return found


def _with_degrees(run: TrainingRun, values: RunValues) -> TrainingRun:
    """The run, with the fields that follow from others if they are not given."""
    whole, inner = values.whole, run.tp * run.pp * run.cp
    dp, vp = whole("dp", default=max(1, run.gpus // inner)), _virtual(values, run)
    local = whole("local_batch", default=1)
    micro_batch = whole("micro_batch", default=1 if run.pp > 1 else local)
    count = whole("microbatches", default=1 if run.pp == 1 else 4 * run.pp)
    replica = local if values.has("local_batch") else count * micro_batch
    family = run.schedule if values.has("schedule") or vp == 1 else "interleaved-1f1b"
    return replace(
        run,
        gpus=whole("gpus", default=inner * dp),
        dp=dp,
        vp=vp,
        etp=whole("etp", default=run.tp),
        micro_batch=micro_batch,
        global_batch=whole("global_batch", default=replica * dp),
        sequence_parallel=values.flag("sequence_parallel", default=run.tp > 1),
        schedule=family,
    )


def _virtual(values: RunValues, run: TrainingRun) -> int:
    """Stages per rank. For ``interleaved, not stated``, the smallest number above 1 that divides a
    rank's layers."""
    if values.has("vp") or "interleaved" not in str(values.stated.get("vp")):
        return run.vp
    each = run.layers // run.pp
    return next((vp for vp in range(2, each + 1) if each % vp == 0), 1)


def _without_ends(given: tuple[int, ...] | None, layers: int) -> tuple[int, ...] | None:
    """``layers_per_stage`` without embedding and head, which some systems count in the first and
    last stage."""
    if given is None or sum(given) != layers + 2 or not (given[0] and given[-1]):
        return given
    counts = [*given]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def usual(model: Model) -> dict[str, Any]:
    """The defaults of a run that depend on the model."""
    return {"attention": "unfused", "sequence_parallel": False} if model.positions else {}
