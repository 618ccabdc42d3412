"""The configurations of a model on a number of GPUs: what is chosen, and what is fixed.

Chosen are the degrees (tp, pp, cp, ep and etp; dp follows from them), the microbatch, the level of
recomputation, the sharding of states, the stages per rank and their placement, the cut, and whether
B and W are one op. Keys of the run that are given are fixed. Omitted are options that cannot win by
``predict``'s model: no sharding, as ``zero1`` sends and holds no more; and more stages per rank
than needed for the same number of layers in the largest stage. ``zero2`` is omitted too, as
predictions do not charge for its reduce-scatter after each microbatch.

All faults of the given keys that hold for every choice are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod
from typing import Any, Self, TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.solver.families import FAMILIES

from ..clusters.cluster import Cluster
from ..inputs.words import memory_limit_of
from ..models.model import Model
from ..models.reading import ModelLike, read_model
from ..models.run import KEYS, Sharding, TrainingRun, usual, values_of
from ..models.run_faults import faults_of
from ..models.words import RunValues
from ..prediction.memory import GIB
from ..prediction.schedule_word import check_schedule
from ..prediction.setup import Setup, check_precision, order_of, placement_of
from .configuration import (
    AUTO,
    LEVELS,
    MOST_STREAMED,
    PLACED_BY,
    ROUND_ROBIN,
    SCHEDULES,
    Configuration,
    has_placement,
    in_words,
    passes_weights,
)


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of ``number`` in ascending order."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


Cut: TypeAlias = Callable[[TrainingRun], tuple[int, ...]]
"""Returns the decoder layers of each stage of a run."""
Values: TypeAlias = Callable[[Model, TrainingRun], Collection[Any]]
Axes: TypeAlias = Mapping[str, Values]
DEGREES: Axes = {
    "tp": lambda _, run: divisors(run.gpus),
    "pp": lambda _, run: divisors(run.gpus // run.tp),
    "cp": lambda _, run: divisors(run.gpus // (run.tp * run.pp)),
    "dp": lambda _, run: (run.gpus // (run.tp * run.pp * run.cp),),
    "etp": lambda model, run: dict.fromkeys((run.tp, 1)) if model.experts else (run.tp,),
    "ep": lambda model, _: divisors(model.experts.count) if model.experts else (1,),
}
"""Values to try for each key, given a run with the keys before it."""
SIZES: Axes = {
    "micro_batch": lambda _, run: divisors(run.global_batch // run.dp),
    "recompute": lambda *_: LEVELS,
}
FIXED = (*DEGREES, *SIZES, "vp", "sharding", "layers_per_stage", "sequence_parallel")
"""Keys that are chosen if they are not given."""


@dataclass(frozen=True)
class Space:
    """The configurations of the run ``base``, with all combinations of the keys that are not fixed.

    ``fixed``: the given keys, validated. ``family``: the given schedule, or None for any.
    ``remat``: schedules of configurations without other recomputation may recompute whole stages.
    ``offload``: schedules of pipelines may offload stages. ``passing``: what pipelines send:
    ``activations``, ``weights`` or, with ``auto``, either. ``headroom``: GiB that plans leave free
    on each device, already subtracted from ``cluster``'s memory.
    """

    model: Model
    cluster: Cluster
    base: TrainingRun
    fixed: Mapping[str, Any]
    family: str | None
    remat: bool = False
    offload: bool = False
    passing: str = Passing.ACTIVATIONS.value
    headroom: float = 0.0

    @classmethod
    def of(cls, model: ModelLike, cluster: Cluster, given: Mapping[str, Any]) -> Self:
        """The space for the given keys. Raises InputError, with one line per fault, or if the space
        is empty."""
        known, headroom = read_model(model), _headroom(given.get("headroom"), cluster)
        remat, offload = given.get("recompute") == AUTO, given.get("offload") or "none"
        passing, family = given.get("passing") or "activations", _family(given.get("schedule"))
        own = {"offload", "passing", "headroom", *(["recompute"] if remat else [])}
        run = {key: value for key, value in given.items() if key not in own}
        values = RunValues(usual(known) | run, KEYS)
        lacking = [key for key in ("gpus", "global_batch") if not values.has(key)]
        values.faults += [f"{key}: missing; expected a whole number >= 1" for key in lacking]
        values.faults += _excluded(offload, passing, remat, family, cluster)
        read = values_of(values, known)
        values.raise_faults()
        fixed = {key: read[key] for key in FIXED if values.has(key)}
        chosen = dict.fromkeys((*DEGREES, "vp", "micro_batch"), 1)
        base = TrainingRun(**read | chosen | {"layers_per_stage": None, "schedule": "1f1b"})
        check_precision(base.precision, cluster)
        gpu = cluster.gpu.model_copy(update={"memory_gib": cluster.gpu.memory_gib - headroom})
        how = remat, offload == AUTO, passing, headroom
        space = cls(known, cluster.model_copy(update={"gpu": gpu}), base, fixed, family, *how)
        if lines := dict.fromkeys(space._faults()):
            raise InputError(*lines)
        if not any(map(space._is_any, space.degrees())):
            raise InputError(space._nothing())
        return space

    @property
    def device_gib(self) -> float:
        """The memory of a device, including headroom, in GiB."""
        return self.cluster.gpu.memory_gib + self.headroom

    @property
    def activations(self) -> bool:
        """Whether configurations may pass activations, or have no pipeline."""
        return self.passing != Passing.WEIGHTS.value

    @property
    def weights(self) -> bool:
        """Whether pipelines may pass weights."""
        return self.passing != Passing.ACTIVATIONS.value

    def _nothing(self) -> str:
        """The message for an empty space, with everything that is fixed."""
        words = [f"{key} {in_words(value)}" for key, value in self.fixed.items()]
        words += [] if self.family is None else [f"schedule {self.family}"]
        if not self.activations:
            words.append(f"passing weights (at most {MOST_STREAMED} pairs of stage and microbatch)")
        return (
            f"gpus: expected a number over which {self.model.name} and a global_batch of "
            f"{self.base.global_batch} can be spread{' with ' * bool(words)}{', '.join(words)}, "
            f"got {self.base.gpus}"
        )

    def _is_any(self, run: TrainingRun) -> bool:
        """Whether a run of :meth:`degrees` has a configuration."""
        found = self.configurations(run, lambda own: own.layers_by_stage)
        return next(found, None) is not None

    def _faults(self) -> Iterator[str]:
        """Faults of the fixed keys that hold for every choice of the others."""
        if self.family is not None:
            yield from _faults_of_family(self.family)
        spread = {key: self.fixed[key] for key in ("tp", "pp", "cp", "dp") if key in self.fixed}
        product = prod(spread.values())
        if self.base.gpus % product:
            words = " x ".join(f"{key} {value}" for key, value in spread.items())
            yield f"gpus: expected a multiple of {words}, got {self.base.gpus}"
        replicas = self.base.gpus // product if {"tp", "pp", "cp"} <= spread.keys() else 1
        batch = self.fixed.get("dp", replicas) * self.fixed.get("micro_batch", 1)
        if self.base.global_batch % batch:
            words = f"a multiple of dp x micro_batch = {batch}"
            yield f"global_batch: expected {words}, got {self.base.global_batch}"
        yield from faults_of(self._alone(), self.model)

    def _alone(self) -> TrainingRun:
        """A run with the fixed degrees, and a number of GPUs and replicas that matches them."""
        fixed = {
            key: self.fixed[key] for key in ("tp", "pp", "vp", "cp", "ep") if key in self.fixed
        }
        counts = self.fixed.get("layers_per_stage")
        if "pp" not in fixed:
            fixed |= {"pp": len(counts or (0,)), "vp": 1}
        elif counts and "vp" not in fixed and fixed["pp"] > 1:
            fixed["vp"] = max(1, len(counts) // fixed["pp"])
        etp = self.fixed.get("etp", fixed.get("tp", 1))
        run = replace(self.base, **fixed, etp=etp, layers_per_stage=counts)
        dp = run.ep * run.etp
        gpus = run.tp * run.pp * run.cp * dp
        return self._parallel(replace(run, gpus=gpus, dp=dp, global_batch=dp))

    def _parallel(self, run: TrainingRun) -> TrainingRun:
        wanted = self.fixed.get("sequence_parallel", True)
        return replace(run, sequence_parallel=wanted and run.tp > 1)

    def degrees(self) -> Iterator[TrainingRun]:
        """Runs with all combinations of degrees, microbatches and levels, with one stage per rank
        and without sharding. If activations are not passed, only those that can pass weights."""
        for spread in map(self._parallel, self._along(tuple(DEGREES.items()), self.base)):
            if next(faults_of(spread, self.model), None) is None:
                for run in self._along(tuple(SIZES.items()), spread):
                    if self.activations or passes_weights(run):
                        yield run

    def _along(self, axes: Sequence[tuple[str, Values]], run: TrainingRun) -> Iterator[TrainingRun]:
        """The run with all combinations of values of these keys, recursively."""
        if not axes:
            yield run
            return
        (key, values), *others = axes
        free, any_other = values(self.model, run), key in {"etp", "recompute"}
        for value in self._options(key, free):
            if any_other or value in free:
                yield from self._along(others, replace(run, **{key: value}))

    def configurations(self, run: TrainingRun, cut: Cut) -> Iterator[Configuration]:
        """The configurations of a run of :meth:`degrees`; ``cut`` returns a cut for unequal
        layers."""
        for sharding in self.shardings(run):
            own = replace(run, sharding=sharding)
            for vp in self._options("vp", chunks(run.layers, run.pp)) if self.activations else ():
                yield from self._placed(replace(own, vp=vp), cut)
            if self.weights and passes_weights(own) and self.fixed.get("vp", 1) == 1:
                yield from self._passing_weights(own)

    def shardings(self, run: TrainingRun) -> tuple[Sharding, ...]:
        """How replicas may shard the states of a run; with a single replica, not at all."""
        if run.dense_replicas == 1:
            return (Sharding.NONE,)
        return tuple(self._options("sharding", (Sharding.ZERO1, Sharding.FSDP)))

    def _passing_weights(self, run: TrainingRun) -> Iterator[Configuration]:
        """Configurations with one stage per rank and larger stages last, since the step begins and
        ends with the first."""
        counts = self.fixed.get("layers_per_stage", run.layers_by_stage[::-1])
        cut = None if counts == run.layers_by_stage else counts
        own = replace(run, schedule=PLACED_BY["linear"], layers_per_stage=cut)
        if next(faults_of(own, self.model), None) is None:
            yield Configuration(own, ROUND_ROBIN, False, ())

    def _placed(self, given: TrainingRun, cut: Cut) -> Iterator[Configuration]:
        for placement, of in PLACED_BY.items():
            if not has_placement(placement, given):
                continue
            for run in self._cuts(replace(given, schedule=of), cut):
                if next(faults_of(run, self.model), None) is None:
                    yield from self._scheduled(run, placement)

    def _scheduled(self, run: TrainingRun, placement: str) -> Iterator[Configuration]:
        """The run with B and W as one op, and as separate ops; only with a given family, if any."""
        if self.family is not None:
            own = replace(run, schedule=self.family)
            with suppress(InputError):
                if placement_of(own).kind.value == placement:
                    splits = Setup(self.model, own, self.cluster).order.splits
                    yield Configuration(own, placement, splits, (self.family,))
            return
        piped = run.pp > 1
        remat, offload = piped and self.remat and not run.recompute, piped and self.offload
        for splits in (False, True) if piped else (False,):
            families = SCHEDULES[placement, splits]
            yield Configuration(run, placement, splits, families, remat, offload)

    def _cuts(self, run: TrainingRun, cut: Cut) -> Iterator[TrainingRun]:
        """The equal cut, and one that compensates for embedding and head."""
        if "layers_per_stage" in self.fixed:
            yield replace(run, layers_per_stage=self.fixed["layers_per_stage"])
            return
        yield run
        if run.pp > 1 and (found := cut(run)) != run.layers_by_stage:
            yield replace(run, layers_per_stage=found)

    def _options(self, key: str, free: Collection[Any]) -> Collection[Any]:
        return (self.fixed[key],) if key in self.fixed else free


def _excluded(
    offload: Any, passing: Any, remat: bool, family: str | None, cluster: Cluster
) -> Iterator[str]:
    """Faults of the keys that only ``plan`` has, and of their combinations."""
    given = "with a schedule that is given" if family is not None else ""
    beside = [f"with recompute {AUTO}" * remat, f"with offload {AUTO}" * (offload == AUTO), given]
    beside = [words for words in beside if words]
    if remat and given:
        yield f"recompute: expected none, selective or full {given}, got {AUTO}"
    if offload not in ("none", AUTO):
        yield f"offload: expected none or {AUTO}, got {offload!r:.60}"
    elif offload == AUTO and (given or cluster.host is None):
        words = given or "where the cluster has no host link"
        yield f"offload: expected none {words}, got {AUTO}"
    if passing not in ("activations", "weights", AUTO):
        yield f"passing: expected activations, weights or {AUTO}, got {passing!r:.60}"
    elif passing != "activations" and beside:
        yield f"passing: expected activations {beside[0]}, got {passing}"


def _headroom(given: float | str | None, cluster: Cluster) -> float:
    """GiB that plans leave free. Raises InputError if it is not a size, or at least a device's
    memory."""
    size = (memory_limit_of(given, name="headroom") or 0.0) / GIB
    if size == inf:  # the word "none"
        return 0.0
    if 0 < size < 1e-3:
        raise InputError(f"headroom: expected a size such as 4GB, got {given:g} bytes")
    if size >= cluster.gpu.memory_gib:
        device = f"{cluster.gpu.memory_gib:g} GiB of {cluster.gpu.name}"
        raise InputError(f"headroom: expected less than the {device}, got {size:.4g} GiB")
    return size


def _faults_of_family(family: str) -> list[str]:
    """The faults of a family if its stages change ranks, or if it updates weights several times per
    step."""
    try:
        order_of(family, 2, 1, 4)
    except InputError as error:
        return [line for line in error.errors if line.startswith("schedule: expected one of")]
    return []


def _family(name: Any) -> str | None:
    """The given family; None if any schedule is allowed."""
    check_schedule(name)
    known = isinstance(name, str) and name.lower().partition(":")[0] in FAMILIES
    return name.lower() if known else None


def chunks(layers: int, ranks: int) -> tuple[int, ...]:
    """The numbers of stages per rank to try: for each number of layers in the largest stage, the
    fewest."""
    if ranks == 1:
        return (1,)
    largest = {-(-layers // (ranks * vp)): vp for vp in range(layers // ranks, 0, -1)}
    return tuple(sorted(largest.values()))
