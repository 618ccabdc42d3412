"""A run: how a model is spread over GPUs, its batch and its memory savings, in checked words.

The keys are those of published measurements and of ``predict``. Values that are absent, null, ``?``
or ``not stated`` take the defaults that :class:`TrainingRun` documents.
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
"""What can be computed again by itself; the words of Megatron's ``--recompute-modules``."""
FULL = frozenset({"full"})
SELECTIVE = frozenset({"core_attn"})
"""Megatron's; with ``fsdp`` torchtitan's (:mod:`.layers.every_second`)."""
_RECOMPUTE = {"none": frozenset[str](), "selective": SELECTIVE, "full": FULL}


class Sharding(StrEnum):
    """The states that data parallel ranks divide among them (Rajbhandari et al., 2020, section 5).

    ``zero1``: optimizer states; ``zero2``: and gradients; ``fsdp``: and weights (ZeRO-3).
    """

    NONE = "none"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    FSDP = "fsdp"


class AttentionKernel(StrEnum):
    """``flash`` keeps no matrix of scores (Dao et al., 2022), ``unfused`` reads and writes it."""

    FLASH = "flash"
    UNFUSED = "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A checked run; :meth:`of` makes it.

    ``gpu``: the cluster's word for it, not looked at here. ``gpus`` = tp x pp x dp x cp; ``dp`` is
    what is left of it. ``etp``: tensor parallelism inside of an expert, as tp by default.
    ``layers``: the model's, or fewer. ``layers_per_stage``: one per stage (pp x vp), embedding and
    head not among them; None: dealt evenly. ``micro_batch`` 1, ``global_batch`` one microbatch,
    with pp > 1 4 pp, a replica; ``seq`` 4096, or the model's positions where these are fewer.
    ``precision`` bf16. ``recompute``: modules, ``{"full"}`` or none of them (the default).
    ``sequence_parallel``: where tp > 1. ``sharding`` none. ``schedule`` 1f1b, with vp > 1
    interleaved-1f1b. ``attention`` flash. ``gradients``: what they are summed in, fp32 as Megatron
    and FSDP do. ``fused_cross_entropy``: false, so the logits are kept in float32. ``compile``:
    whether a compiler fuses passes over memory, false; the work is counted alike.
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

        Raises InputError, with a line for each fault: an unknown key, a value of another kind,
        degrees that do not divide each other, the GPUs, the model or the batch.
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
        """Microbatches of one replica in one step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def stages(self) -> int:
        return self.pp * self.vp

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on one rank, which context parallelism divides."""
        return self.micro_batch * self.seq / self.cp

    @property
    def split(self) -> int:
        """Ranks over which norms and residuals are divided: tp with sequence parallelism."""
        return self.tp if self.sequence_parallel else 1

    @property
    def dense_replicas(self) -> int:
        """Ranks with the same parameters outside of experts: the size of the group DP."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """Ranks with the same experts: the size of the group EDP."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def layers_by_stage(self) -> tuple[int, ...]:
        """Decoder layers of each stage, in forward order; one more in the first where uneven."""
        if self.layers_per_stage is not None:
            return self.layers_per_stage
        each, more = divmod(self.layers, self.stages)
        return tuple(each + (stage < more) for stage in range(self.stages))


KEYS = tuple(field.name for field in fields(TrainingRun))
ALSO = ("microbatches", "local_batch")
"""Other words for the batch: microbatches of a replica, sequences of a replica."""


def values_of(values: RunValues, model: Model) -> dict[str, Any]:
    """Each field as it is given, else with its default."""
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
    """``12,14``, a list, or one number."""
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
    """With what follows from other fields where it is not given."""
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
    """Stages a rank; of ``interleaved, not stated`` the fewest that divide a rank's layers."""
    if values.has("vp") or "interleaved" not in str(values.stated.get("vp")):
        return run.vp
    each = run.layers // run.pp
    return next((vp for vp in range(2, each + 1) if each % vp == 0), 1)


def _without_ends(given: tuple[int, ...] | None, layers: int) -> tuple[int, ...] | None:
    """``layers_per_stage`` of which the first counts the embedding and the last the head, as some
    systems do, without them."""
    if given is None or sum(given) != layers + 2 or not (given[0] and given[-1]):
        return given
    counts = [*given]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def usual(model: Model) -> dict[str, Any]:
    """The defaults of a run that depend on the model."""
    return {"attention": "unfused", "sequence_parallel": False} if model.positions else {}
