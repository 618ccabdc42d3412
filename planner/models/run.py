"""A run: how a model is spread over GPUs, its batch and its memory savings, in checked words.

The keys are those of published measurements and of ``predict``. Values that are absent, null, ``?``
or ``not stated`` take the defaults that :class:`Run` documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.validation import misspelt
from pipeloom.ir.units import counted

from .model import Model
from .precision import Precision

RECOMPUTED_MODULES = (
    "core_attn",
    "layernorm",
    "mlp",
    "moe",
    "moe_act",
    "mla_up_proj",
    "shared_experts",
)
"""What can be computed again by itself; the words of Megatron's ``--recompute-modules``."""
FULL = frozenset({"full"})
SELECTIVE = frozenset({"core_attn"})
"""Megatron's; with ``fsdp`` torchtitan's (:mod:`.layers.every_second`)."""
_RECOMPUTE = {"none": frozenset[str](), "selective": SELECTIVE, "full": FULL}
_PRECISIONS = {"float8": "fp8", "fp8cs": "fp8", "fp8ds": "fp8", "float32": "fp32"} | {
    "bfloat16": "bf16",
    "float16": "fp16",
}


class Sharding(StrEnum):
    """What data parallel ranks divide among them (Rajbhandari et al., 2020, section 5).

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
class Run:
    """A checked run; :meth:`of` makes it.

    ``gpu``: the cluster's word for it, not looked at here. ``gpus`` = tp x pp x dp x cp; ``dp`` is
    what is left of it. ``etp``: tensor parallelism inside of an expert, as tp by default.
    ``layers``: the model's, or fewer. ``layers_per_stage``: one a stage (pp x vp), embedding and
    head not among them; None: dealt evenly. ``micro_batch`` 1, ``global_batch`` one microbatch,
    with pp > 1 4 pp, a replica; ``seq`` 4096, or the model's positions where these are fewer.
    ``precision`` bf16. ``recompute``: modules, ``{"full"}`` or none of them (the default).
    ``sequence_parallel``: where tp > 1. ``sharding`` none. ``schedule`` 1f1b, with vp > 1
    interleaved-1f1b. ``attention`` flash. ``gradients``: what they are summed in, fp32 as Megatron
    and FSDP do. ``fused_cross_entropy``: false, so the logits are kept in float32. ``compile``:
    false; true fuses passes over memory.
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
    def of(cls, given: Mapping[str, Any], model: Model) -> Run:
        """The run that ``given`` describes for ``model``.

        Raises InputError, with a line for each fault: an unknown key, a value of another kind,
        degrees that do not divide each other, the GPUs, the model or the batch.
        """
        values = _Values(given)
        run = cls(**_plain(values, model))
        values.raise_faults()
        run = _with_degrees(run, values, model)
        values.raise_faults()
        if faults := list(_faults(run, model)):
            raise InputError(*faults)
        return run

    @property
    def microbatches(self) -> int:
        """Of one replica, in one step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def stages(self) -> int:
        return self.pp * self.vp

    @property
    def tokens(self) -> float:
        """Of a microbatch on one rank, which context parallelism divides."""
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


T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
KEYS = tuple(field.name for field in fields(Run))
_TOO = ("microbatches", "local_batch")
"""Other words for the batch: microbatches of a replica, sequences of a replica."""


class _Values:
    """Values by key, and the faults met while they are read."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.faults: list[str] = []
        known = (*KEYS, *_TOO)
        hints = dict(misspelt([str(key) for key in given], known))
        for key in given:
            if key not in known:
                meant = hints.get(str(key))
                hint = f"did you mean {meant}?" if meant else f"known: {', '.join(known)}"
                self.faults.append(f"{key}: unknown key; {hint}")
        self._stated = given
        self._values = {key: value for key, value in given.items() if not _is_unknown(value)}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def stated(self, key: str) -> Any:
        """The value as it was given, though it may say that it is not known."""
        return self._stated.get(key)

    def raise_faults(self) -> None:
        if self.faults:
            raise InputError(*self.faults)

    def wrong(self, key: str, expected: str, default: T) -> T:
        self.faults.append(f"{key}: expected {expected}, got {self._values[key]!r:.60}")
        return default

    def whole(self, key: str, default: int) -> int:
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.wrong(key, "a whole number >= 1", default)
        if value < 1 or value != int(value):
            return self.wrong(key, "a whole number >= 1", default)
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        return value if isinstance(value, bool) else self.wrong(key, "true or false", default)

    def choice(self, key: str, default: E) -> E:
        word = str(self._values.get(key, default)).lower().replace("-", "").replace("_", "")
        kind = type(default)
        try:
            return kind(_PRECISIONS.get(word, word))
        except ValueError:
            return self.wrong(key, f"one of {', '.join(kind)}", default)


def _is_unknown(value: object) -> bool:
    return value is None or (isinstance(value, str) and ("not stated" in value or value == "?"))


def _plain(values: _Values, model: Model) -> dict[str, Any]:
    """The fields that depend on no other one."""
    gpu = values.get("gpu")
    if gpu is not None and not isinstance(gpu, str):
        values.wrong("gpu", "a name", None)
    return {
        "gpu": gpu,
        **{key: values.whole(key, 1) for key in ("tp", "pp", "cp", "ep")},
        "seq": values.whole("seq", min(4096, model.longest or 4096)),
        "precision": values.choice("precision", Precision.BF16),
        "gradients": values.choice("gradients", Precision.FP32),
        "recompute": _recompute(values),
        "sharding": values.choice("sharding", Sharding.NONE),
        "layers": values.whole("layers", model.layers),
        "layers_per_stage": _by_stage(values),
        "attention": values.choice("attention", AttentionKernel.FLASH),
        "fused_cross_entropy": values.flag("fused_cross_entropy", False),
        "compile": values.flag("compile", False),
    }


def _recompute(values: _Values) -> frozenset[str]:
    given = values.get("recompute", "none")
    words = given.lower().split(",") if isinstance(given, str) else given
    if isinstance(given, str) and given.lower() in _RECOMPUTE:
        return _RECOMPUTE[given.lower()]
    if not isinstance(words, Sequence | frozenset | set) or not set(words) <= {*RECOMPUTED_MODULES}:
        known = f"none, selective, full, or some of {', '.join(RECOMPUTED_MODULES)}"
        return values.wrong("recompute", known, frozenset())
    return frozenset(words)


def _by_stage(values: _Values) -> tuple[int, ...] | None:
    """``12,14`` or a list."""
    given = values.get("layers_per_stage")
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given
    try:
        found = tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        found = ()
    if not found or min(found) < 0:
        return values.wrong("layers_per_stage", "whole numbers >= 0, one a stage", None)
    return found


def _with_degrees(run: Run, values: _Values, model: Model) -> Run:
    """With what follows from other fields where it is not given."""
    inner = run.tp * run.pp * run.cp
    dp = values.whole("dp", max(1, values.whole("gpus", inner) // inner))
    vp = _virtual(values, run)
    micro_batch = values.whole("micro_batch", 1 if run.pp > 1 else values.whole("local_batch", 1))
    default = values.whole("microbatches", 1 if run.pp == 1 else 4 * run.pp) * dp * micro_batch
    if "local_batch" in values:
        default = values.whole("local_batch", 1) * dp
    schedule = values.get("schedule", "1f1b" if vp == 1 else "interleaved-1f1b")
    if not isinstance(schedule, str):
        schedule = values.wrong("schedule", "a family's name", "1f1b")
    run = replace(
        run,
        gpus=values.whole("gpus", inner * dp),
        dp=dp,
        vp=vp,
        etp=values.whole("etp", run.tp),
        micro_batch=micro_batch,
        global_batch=values.whole("global_batch", default),
        sequence_parallel=values.flag("sequence_parallel", run.tp > 1),
        schedule=schedule.lower(),
    )
    return replace(run, layers_per_stage=_without_ends(run))


def _virtual(values: _Values, run: Run) -> int:
    """Stages a rank; of ``interleaved, not stated`` the fewest that divide a rank's layers."""
    if "vp" not in values and "interleaved" in str(values.stated("vp")):
        each = run.layers // run.pp
        return next((vp for vp in range(2, each + 1) if each % vp == 0), 1)
    return values.whole("vp", 1)


def _without_ends(run: Run) -> tuple[int, ...] | None:
    """``layers_per_stage`` of which the first counts the embedding and the last the head, as some
    systems do, without them."""
    given = run.layers_per_stage
    if given is None or sum(given) != run.layers + 2:
        return given
    counts = [*given]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def _faults(run: Run, model: Model) -> Iterator[str]:
    """Of each key the first; what a wrong degree entails is not said."""
    keys = set()
    for line in _all_faults(run, model):
        key = line.partition(":")[0]
        if key not in keys and not (key == "seq" and "tp" in keys):
            yield line
        keys.add(key)


def _all_faults(run: Run, model: Model) -> Iterator[str]:
    yield from _faults_of_widths(run, model)
    yield from _faults_of_degrees(run)
    yield from _faults_of_layers(run, model)
    yield from _faults_of_recompute(run, model)
    if run.global_batch % (run.dp * run.micro_batch):
        each = f"dp x micro_batch = {run.dp} x {run.micro_batch}"
        yield f"global_batch: expected a multiple of {each}, got {run.global_batch}"


def _faults_of_degrees(run: Run) -> Iterator[str]:
    product = run.tp * run.pp * run.cp * run.dp
    if product != run.gpus:
        degrees = f"tp x pp x cp x dp = {run.tp} x {run.pp} x {run.cp} x {run.dp} = {product}"
        yield f"gpus: expected {degrees}, got {run.gpus}"
    if run.vp > 1 and run.pp == 1:
        yield f"vp: expected 1 where pp is 1, got {run.vp}"
    if run.tp * run.cp * run.dp % (run.ep * run.etp):
        yield (
            f"ep: expected ep x etp to divide tp x cp x dp = {run.tp * run.cp * run.dp}, "
            f"got {run.ep} x {run.etp}"
        )
    if run.seq % (run.cp * run.split):
        yield f"seq: expected a multiple of cp x tp = {run.cp * run.split}, got {run.seq}"
    if run.sequence_parallel and run.tp == 1:
        yield "sequence_parallel: expected false where tp is 1, got true"
    if run.cp > 1 and run.attention is AttentionKernel.UNFUSED:
        yield f"attention: expected flash where cp is {run.cp}, got unfused"


def _faults_of_layers(run: Run, model: Model) -> Iterator[str]:
    if run.layers > model.layers:
        yield f"layers: expected at most the model's {model.layers}, got {run.layers}"
    if run.layers_per_stage is None:
        if run.layers < run.stages:
            layers = counted(run.layers, "layer")
            yield f"pp: expected at most one stage a layer, pp x vp <= {layers}, got {run.stages}"
    elif len(run.layers_per_stage) != run.stages or sum(run.layers_per_stage) != run.layers:
        yield (
            f"layers_per_stage: expected {counted(run.stages, 'number')} that sum to {run.layers}, "
            f"or {run.layers + 2} with embedding and head, got {list(run.layers_per_stage)}"
        )


def _faults_of_widths(run: Run, model: Model) -> Iterator[str]:
    if model.heads % run.tp:
        yield f"tp: expected a divisor of the {model.heads} heads, got {run.tp}"
    if max(model.kv_heads, run.tp) % min(model.kv_heads, run.tp):
        heads = f"{model.kv_heads} heads of keys and values"
        yield f"tp: expected a divisor or a multiple of the {heads}, got {run.tp}"
    if model.experts is None:
        if run.ep > 1:
            yield f"ep: expected 1, {model.name} has no experts, got {run.ep}"
        return
    if run.tp > 1 and not run.sequence_parallel:
        yield f"sequence_parallel: expected true where {model.name} has experts and tp is {run.tp}"
    if model.experts.count % run.ep:
        yield f"ep: expected a divisor of the {model.experts.count} experts, got {run.ep}"


def _faults_of_recompute(run: Run, model: Model) -> Iterator[str]:
    need = {"moe": model.experts, "moe_act": model.experts, "mla_up_proj": model.latent}
    need["shared_experts"] = model.experts if model.experts and model.experts.shared_width else None
    for module in sorted(run.recompute & {key for key, part in need.items() if part is None}):
        yield f"recompute: {module}: {model.name} has none"
