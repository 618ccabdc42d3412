"""A training run: parallel degrees, batch, and options that save memory, validated.

The settings have the names that published measurements and ``predict`` use for them. If a value is
absent, null, ``?`` or ``not stated``, the default that :class:`TrainingRun` documents is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.units import counted

from .model import Model
from .precision import Precision
from .words import Words


class Recompute(StrEnum):
    """The ops that are recomputed before a layer's backward.

    ``SELECTIVE``: attention without its projections; with ``fsdp``, torchtitan's choice
    (:mod:`.layers.every_second`). ``FULL``: all ops.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Sharding(StrEnum):
    """The training states that data parallel ranks shard (Rajbhandari et al., 2020, section 5).

    ``zero1``: optimizer states; ``zero2``: also gradients; ``fsdp``: also weights (ZeRO-3).
    """

    NONE = "none"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    FSDP = "fsdp"


class AttentionKernel(StrEnum):
    """The kernel of attention: ``flash`` never stores the matrix of scores (Dao et al., 2022);
    ``unfused`` writes and reads it."""

    FLASH = "flash"
    UNFUSED = "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A validated training run, made by :meth:`of`, which sets the defaults that are named here.

    ``gpus`` = tp x pp x dp x cp; by default, ``dp`` follows from the other four. ``etp``: tensor
    parallel degree within an expert, tp by default. ``layers``: number of decoder layers, at most
    and by default the model's. ``layers_per_stage``: one number of decoder layers per stage (pp x
    vp), or None if they are evenly divided. ``micro_batch``: sequences per microbatch, 1 by
    default. ``global_batch``: sequences per step; by default one microbatch per replica, or 4 pp if
    pp > 1. ``seq``: tokens per sequence; 4096 by default, or the model's maximum length if that is
    less. ``precision``: bf16 by default. ``recompute``: none by default. ``sequence_parallel``: by
    default, whether tp > 1. ``sharding``: none by default. ``schedule``: a family; 1f1b by default,
    or interleaved-1f1b if vp > 1. ``attention``: flash by default. ``gradients``: the format in
    which gradients are summed; fp32 by default, as in Megatron and FSDP. ``fused_cross_entropy``:
    whether the gradient of the logits overwrites them; if not (the default), logits are held in
    float32. ``compile``: whether a compiler fuses elementwise kernels, false by default; this does
    not change the counted work.
    """

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
    recompute: Recompute = Recompute.NONE
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
        """The run that the mapping ``given`` describes for ``model``.

        Raises InputError with one line per fault: an invalid value, or degrees that do not fit each
        other, the number of GPUs, the model or the batch.
        """
        words = words_of(given)
        run = cls(**values_of(words, model))
        words.raise_faults()
        run = _with_degrees(run, words)
        words.raise_faults()
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
        """The number of ranks that divide the tokens of norms and residual additions.

        It is tp with sequence parallelism, otherwise 1.
        """
        return self.tp if self.sequence_parallel else 1

    @property
    def dense_replicas(self) -> int:
        """The number of ranks that hold the same non-expert parameters: the size of
        :attr:`.work.Group.DP`."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        """The number of ranks that hold the same experts: the size of :attr:`.work.Group.EDP`."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def torch_selects(self) -> bool:
        """Whether recomputation follows torchtitan's policy (:mod:`.layers.every_second`)."""
        return self.sharding is Sharding.FSDP and self.recompute is Recompute.SELECTIVE

    @property
    def layers_by_stage(self) -> tuple[int, ...]:
        """The number of decoder layers of each stage, in forward order.

        Without ``layers_per_stage``, if the layers cannot be divided evenly, the first stages have
        one more layer each.
        """
        if self.layers_per_stage is not None:
            return self.layers_per_stage
        each, more = divmod(self.layers, self.stages)
        return tuple(each + (stage < more) for stage in range(self.stages))


KEYS = tuple(field.name for field in fields(TrainingRun))
ALSO = ("microbatches", "local_batch")
"""Alternatives to ``global_batch``: numbers of microbatches and of sequences, both per replica."""


def words_of(given: Mapping[str, Any]) -> Words:
    """The values in ``given``, by key, except unknown ones (null, ``?`` or ``not stated``).

    The value of ``vp`` is kept even if it is unknown, since :func:`_virtual` interprets
    ``interleaved, not stated``.
    """
    return Words({k: value for k, value in given.items() if k == "vp" or not _is_unknown(value)})


def _is_unknown(value: object) -> bool:
    return value is None or (isinstance(value, str) and ("not stated" in value or value == "?"))


def values_of(words: Words, model: Model) -> dict[str, Any]:
    """The value of each field of :class:`TrainingRun` by name: as given, or its default."""
    defaults: dict[str, Any] = {field.name: field.default for field in fields(TrainingRun)}
    defaults |= {"seq": min(4096, model.longest or 4096), "layers": model.layers}
    found = {key: _value(words, key, default) for key, default in defaults.items() if key != "vp"}
    cut = _without_ends(_by_stage(words), found["layers"])
    found |= {"layers_per_stage": cut, "schedule": found["schedule"].lower()}
    return found | {"vp": _virtual(words, found["layers"] // found["pp"])}


def _value(words: Words, key: str, default: Any) -> Any:
    """The value that was given for ``key``, or ``default`` if none was given.

    A value that is invalid for this field, judging by the type of ``default``, is recorded as a
    fault; ``default`` is then returned too.
    """
    if isinstance(default, bool):
        return words.flag(key, default=default)
    if isinstance(default, StrEnum):
        return words.choice(key, default)
    if isinstance(default, int):
        return words.whole(key, default=default)
    found = words.value(key)
    if key == "layers_per_stage" or found is None:
        return default
    return found if isinstance(found, str) else words.wrong((key,), "a name", default)


def _by_stage(words: Words) -> tuple[int, ...] | None:
    """The value of ``layers_per_stage`` as a tuple of numbers, or None if it is not given.

    It may be given as text such as ``12,14``, a list, or a single number. Anything else is recorded
    as a fault.
    """
    given = words.value("layers_per_stage")
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given
    try:
        found = tuple(map(int, [parts] if isinstance(parts, int) else parts))
    except (TypeError, ValueError):
        found = ()
    if not found or min(found) < 0:
        return words.wrong(("layers_per_stage",), "whole numbers >= 0, one per stage", None)
    return found


def _without_ends(given: tuple[int, ...] | None, layers: int) -> tuple[int, ...] | None:
    """The layers of each stage ``given`` (``layers_per_stage``), without the embedding and the
    head.

    Some systems count these two as layers of the first and the last stage. They do if the sum is
    ``layers`` + 2; otherwise, or if None is given, ``given`` is returned unchanged.
    """
    if given is None or sum(given) != layers + 2 or not (given[0] and given[-1]):
        return given
    counts = [*given]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def _virtual(words: Words, each: int) -> int:
    """The number of stages per rank (``vp``), where ``each`` is the number of layers per rank.

    If ``vp`` was given as ``interleaved, not stated``, the result is the smallest number above 1
    that divides ``each``. If no such number exists, or if ``vp`` was not given at all, it is 1.
    """
    given = words.value("vp")
    if not _is_unknown(given):
        return words.whole("vp")
    divisors = (vp for vp in range(2, each + 1) if each % vp == 0)
    return next(divisors, 1) if "interleaved" in str(given) else 1


def _with_degrees(run: TrainingRun, words: Words) -> TrainingRun:
    """A copy of ``run`` with the fields whose defaults depend on other fields: as given in
    ``words``, or else their defaults."""
    whole, inner = words.whole, run.tp * run.pp * run.cp
    dp = whole("dp", default=max(1, run.gpus // inner))
    local = whole("local_batch", default=1)
    micro_batch = whole("micro_batch", default=1 if run.pp > 1 else local)
    count = whole("microbatches", default=1 if run.pp == 1 else 4 * run.pp)
    replica = local if words.has("local_batch") else count * micro_batch
    return replace(
        run,
        gpus=whole("gpus", default=inner * dp),
        dp=dp,
        etp=whole("etp", default=run.tp),
        micro_batch=micro_batch,
        global_batch=whole("global_batch", default=replica * dp),
        sequence_parallel=words.flag("sequence_parallel", default=run.tp > 1),
        schedule=run.schedule if words.has("schedule") or run.vp == 1 else "interleaved-1f1b",
    )


def usual(model: Model) -> dict[str, Any]:
    """The default values that depend on the model, by key; empty for most models.

    Models with learned positions (GPT, OPT) use unfused attention and no sequence parallelism by
    default, as their published runs are older than fused attention and sequence parallelism.
    """
    return {"attention": "unfused", "sequence_parallel": False} if model.positions else {}


def faults_of(run: TrainingRun, model: Model) -> Iterator[str]:
    """One line per fault of the run as a whole, without those that follow from another fault."""
    widths = [*_faults_of_widths(run, model)]
    yield from widths or _faults_of_degrees(run)
    yield from _faults_of_layers(run, model)


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


def _faults_of_degrees(run: TrainingRun) -> Iterator[str]:
    if run.vp > 1 and run.pp == 1:
        yield f"vp: expected 1 where pp is 1, got {run.vp}"
    if run.seq % (run.cp * run.split):
        yield f"seq: expected a multiple of cp x tp = {run.cp * run.split}, got {run.seq}"
    if run.sequence_parallel and run.tp == 1:
        yield "sequence_parallel: expected false where tp is 1, got true"
    if run.cp > 1 and run.attention is AttentionKernel.UNFUSED:
        yield f"attention: expected flash where cp is {run.cp}, got unfused"
    inner = run.tp * run.cp * run.dp
    if run.global_batch % (run.dp * run.micro_batch):
        each = f"dp x micro_batch = {run.dp} x {run.micro_batch}"
        yield f"global_batch: expected a multiple of {each}, got {run.global_batch}"
    if inner * run.pp != run.gpus:
        degrees = f"{run.tp} x {run.pp} x {run.cp} x {run.dp} = {inner * run.pp}"
        yield f"gpus: expected tp x pp x cp x dp = {degrees}, got {run.gpus}"
    elif inner % (run.ep * run.etp):
        yield (
            f"ep: expected ep x etp to divide tp x cp x dp = {inner}, got {run.ep} x {run.etp} "
            "(etp is tp where it is not given)"
        )


def _faults_of_layers(run: TrainingRun, model: Model) -> Iterator[str]:
    counts = run.layers_per_stage
    if run.layers > model.layers:
        yield f"layers: expected at most the model's {model.layers}, got {run.layers}"
    elif counts is None:
        if run.layers < run.stages:
            layers = counted(run.layers, "layer")
            yield f"pp: expected at most one stage per layer, pp x vp <= {layers}, got {run.stages}"
    elif sum(counts) != run.layers:
        yield (
            f"layers_per_stage: expected numbers that sum to {run.layers}, or {run.layers + 2} "
            f"with embedding and head in the first and the last, got {list(counts)}"
        )
    elif 0 in counts[1:-1]:
        yield (
            "layers_per_stage: expected a layer in each stage between the first and the last, "
            f"got {list(counts)}"
        )
    elif len(counts) != run.stages:
        yield f"layers_per_stage: expected {counted(run.stages, 'number')}, got {list(counts)}"
