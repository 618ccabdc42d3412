"""The configurations of a model on so many GPUs: what may be chosen, and what is fixed.

Chosen are the degrees (tp, pp, cp, ep and etp; dp is what is left), the microbatch, what is
recomputed, how states are sharded, the stages of a rank and where they lie, the cut, and whether
B and W are one op. A key of the run that is given is fixed. Left out is what cannot win by
``predict``'s own arithmetic: no sharding, where ``zero1`` sends and holds no more; more stages a
rank where the largest stage has as many layers with fewer. Left out too is ``zero2``, which
predictions do not charge for scattering gradients after each microbatch.

The part of a plan that is given and not chosen: keys of the run, schedule, passing, offload.

All faults of what is given are told at once, whatever else is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, Self, TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.solver.families import FAMILIES

from ..clusters.cluster import Cluster
from ..inputs.words import memory_limit_of
from ..models.model import Model
from ..models.reading import ModelLike, read_model
from ..models.run import KEYS, Sharding, TrainingRun, plain_fields, usual, without_ends
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
    passes_weights,
)

DEGREES = ("tp", "pp", "vp", "dp", "cp", "ep", "etp", "micro_batch")
_NEEDED = ("gpus", "global_batch")


@dataclass(frozen=True)
class Given:
    """The given part of a plan: the run ``base``, of which degrees, batch and levels are chosen.

    ``fixed``: the keys that are given, checked; ``family``: the schedule that is, None: any.
    ``remat``: schedules of configurations that recompute nothing else may recompute whole stages;
    ``offload``: schedules of pipelines may offload them. ``passing``: what pipelines send,
    ``activations``, ``weights`` or, ``auto``, either. ``headroom``: GiB that plans leave free on
    each device, which the ``cluster``'s memory is without.
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

    @property
    def device_gib(self) -> float:
        """The memory of a device, GiB."""
        return self.cluster.gpu.memory_gib + self.headroom

    @classmethod
    def of(cls, model: ModelLike, cluster: Cluster, given: Mapping[str, Any]) -> Self:
        """Raises InputError, with a line for each fault of what is given."""
        known, remat = read_model(model), given.get("recompute") == AUTO
        offload = given.get("offload") or "none"
        passing = given.get("passing") or Passing.ACTIVATIONS.value
        headroom = _headroom(given.get("headroom"), cluster)
        left_out = {"offload", "passing", "headroom", *(["recompute"] if remat else [])}
        given = {key: value for key, value in given.items() if key not in left_out}
        values = RunValues(usual(known) | given, KEYS)
        for key in _NEEDED:
            if not values.has(key):
                values.faults.append(f"{key}: missing; expected a whole number >= 1")
        if remat and _family(given) is not None:
            words = "none, selective or full with a schedule that is given"
            values.faults.append(f"recompute: expected {words}, got {AUTO}")
        values.faults += _faults_of_offload(offload, cluster, _family(given))
        others = {"recompute": remat, "offload": offload == AUTO, "schedule": _family(given)}
        values.faults += _faults_of_passing(passing, [key for key, on in others.items() if on])
        plain = plain_fields(values, known)
        fixed: dict[str, Any] = {
            key: values.whole(key, default=1) for key in DEGREES if values.has(key)
        }
        whole = {key: values.whole(key, default=1) for key in _NEEDED}
        for key in ("recompute", "sharding", "layers_per_stage"):
            if values.has(key):
                fixed[key] = plain[key]
        if "layers_per_stage" in fixed:
            fixed["layers_per_stage"] = without_ends(plain["layers_per_stage"], plain["layers"])
        if values.has("sequence_parallel"):
            fixed["sequence_parallel"] = values.flag("sequence_parallel", default=True)
        values.raise_faults()
        base = TrainingRun(**plain | {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | whole)
        check_precision(base.precision, cluster)
        base = replace(base, layers_per_stage=None)
        gpu = replace(cluster.gpu, memory_gib=cluster.gpu.memory_gib - headroom)
        how = remat, offload == AUTO, passing, headroom
        found = cls(known, replace(cluster, gpu=gpu), base, fixed, _family(given), *how)
        if lines := dict.fromkeys(found._faults()):
            raise InputError(*lines)
        return found

    @property
    def activations(self) -> bool:
        """Whether configurations may pass activations, or have no pipeline."""
        return self.passing != Passing.WEIGHTS.value

    @property
    def weights(self) -> bool:
        """Whether pipelines may pass weights."""
        return self.passing != Passing.ACTIVATIONS.value

    @property
    def words(self) -> str:
        """All that is fixed; empty where nothing is."""
        words = [f"{key} {_said(value)}" for key, value in self.fixed.items()]
        words += [] if self.family is None else [f"schedule {self.family}"]
        if not self.activations:
            words.append(f"passing weights (at most {MOST_STREAMED} pairs of stage and microbatch)")
        return ", ".join(words)

    def _faults(self) -> Iterator[str]:
        """Faults of what is fixed, whatever else is chosen."""
        if self.family is not None:
            yield from _faults_of_family(replace(self.base, pp=2, schedule=self.family))
        product = 1
        for key in ("tp", "pp", "cp", "dp"):
            product *= self.fixed.get(key, 1)
        if self.base.gpus % product:
            words = " x ".join(
                f"{k} {self.fixed[k]}" for k in ("tp", "pp", "cp", "dp") if k in self.fixed
            )
            yield f"gpus: expected a multiple of {words}, got {self.base.gpus}"
        replicas = self.base.gpus // product if {"tp", "pp", "cp"} <= self.fixed.keys() else 1
        batch = self.fixed.get("dp", replicas) * self.fixed.get("micro_batch", 1)
        if self.base.global_batch % batch:
            words = f"a multiple of dp x micro_batch = {batch}"
            yield f"global_batch: expected {words}, got {self.base.global_batch}"
        if counts := self.fixed.get("layers_per_stage"):
            alone = replace(self.base, pp=len(counts), layers_per_stage=counts)
            for line in faults_of(alone, self.model):
                if line.startswith("layers_per_stage"):
                    yield line
        degrees = {
            key: self.fixed[key] for key in ("tp", "pp", "vp", "cp", "ep") if key in self.fixed
        }
        etp = self.fixed.get("etp", degrees.get("tp", 1))
        alone = self._parallel(replace(self.base, etp=etp, **degrees))
        for line in faults_of(alone, self.model):
            key = line.partition(":")[0]
            if (
                key in {"tp", "etp", "pp", "layers", "recompute", "seq", "attention"}
                or (key == "ep" and "x etp" not in line)
                or (key == "vp" and "pp" in self.fixed)
            ):
                yield line

    def _parallel(self, run: TrainingRun) -> TrainingRun:
        wanted = self.fixed.get("sequence_parallel", True)
        return replace(run, sequence_parallel=wanted and run.tp > 1)


def _headroom(given: float | str | None, cluster: Cluster) -> float:
    """GiB that plans leave free. Raises InputError for what is no size, or all of a device."""
    size = (memory_limit_of(given, name="headroom") or 0.0) / GIB
    if size == inf:  # none
        return 0.0
    if 0 < size < 1e-3:
        raise InputError(f"headroom: expected a size such as 4GB, got {given:g} bytes")
    if size >= cluster.gpu.memory_gib:
        device = f"{cluster.gpu.memory_gib:g} GiB of {cluster.gpu.name}"
        raise InputError(f"headroom: expected less than the {device}, got {size:.4g} GiB")
    return size


def _faults_of_family(run: TrainingRun) -> list[str]:
    """Whether its stages wander, or are updated more than once a step."""
    try:
        order_of(replace(run, global_batch=4, dp=1, micro_batch=1))
    except InputError as error:
        return [line for line in error.errors if line.startswith("schedule: expected one of")]
    return []


def _faults_of_offload(given: Any, cluster: Cluster, family: str | None) -> Iterator[str]:
    if given not in ("none", AUTO):
        yield f"offload: expected none or {AUTO}, got {given!r:.60}"
    elif given == AUTO and cluster.host is None:
        yield f"offload: expected none where the cluster has no host link, got {AUTO}"
    elif given == AUTO and family is not None:
        yield f"offload: expected none with a schedule that is given, got {AUTO}"


def _faults_of_passing(given: Any, others: Sequence[str]) -> Iterator[str]:
    words = [Passing.ACTIVATIONS.value, Passing.WEIGHTS.value, AUTO]
    if given not in words:
        yield f"passing: expected {words[0]}, {words[1]} or {AUTO}, got {given!r:.60}"
    elif given != words[0] and others:
        beside = {"schedule": "a schedule that is given"}.get(others[0], f"{others[0]} {AUTO}")
        yield f"passing: expected {words[0]} with {beside}, got {given}"


def _said(value: Any) -> str:
    """A value that is fixed, in words."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "+".join(sorted(value)) or "none" if isinstance(value, frozenset) else str(value)


def _family(given: Mapping[str, Any]) -> str | None:
    """The family that is given, None where any schedule is meant."""
    name = given.get("schedule")
    check_schedule(name)
    if isinstance(name, str) and name.lower().partition(":")[0] in FAMILIES:
        return name.lower()
    return None


Cut: TypeAlias = Callable[[TrainingRun], tuple[int, ...]]
"""Decoder layers of each stage of a run."""


class Space(Given):
    """The configurations of ``base``, of which degrees, batch and levels are chosen."""

    @classmethod
    def of(cls, model: ModelLike, cluster: Cluster, given: Mapping[str, Any]) -> Self:
        """Raises InputError, with a line for each fault of what is given, or where nothing is
        left."""
        space = super().of(model, cluster, given)
        if not any(map(space._is_any, space.degrees())):
            fixed = f" with {space.words}" if space.words else ""
            raise InputError(
                f"gpus: expected a number over which {space.model.name} and a global_batch of "
                f"{space.base.global_batch} can be spread{fixed}, got {space.base.gpus}"
            )
        return space

    def _is_any(self, run: TrainingRun) -> bool:
        """Whether the run of :meth:`degrees` has a configuration."""
        found = self.configurations(run, lambda own: own.layers_by_stage)
        return next(found, None) is not None

    def degrees(self) -> Iterator[TrainingRun]:
        """Runs of all degrees, microbatches and levels, one stage per rank, states unsharded; where
        activations are not passed, those that can pass weights alone."""
        for spread in self._spreads():
            batch = spread.global_batch // spread.dp
            for size in self._options("micro_batch", divisors(batch)):
                run = replace(spread, micro_batch=size)
                if batch % size == 0 and (self.activations or passes_weights(run)):
                    for level in self._options("recompute", LEVELS):
                        yield replace(run, recompute=level)

    def _spreads(self) -> Iterator[TrainingRun]:
        base = self.base
        for tp in self._dividing("tp", base.gpus):
            for pp in self._dividing("pp", base.gpus // tp):
                for cp in self._dividing("cp", base.gpus // (tp * pp)):
                    dp = base.gpus // (tp * pp * cp)
                    if self.fixed.get("dp", dp) == dp and base.global_batch % dp == 0:
                        run = replace(base, tp=tp, pp=pp, cp=cp, dp=dp, etp=tp)
                        yield from self._with_experts(self._parallel(run))

    def _with_experts(self, run: TrainingRun) -> Iterator[TrainingRun]:
        """The run with its experts spread in all ways; of a dense model the run itself."""
        experts = self.model.experts
        inner = dict.fromkeys((run.tp, 1)) if experts else (run.tp,)
        for etp in self._options("etp", inner):
            for ep in self._options("ep", divisors(experts.count) if experts else (1,)):
                found = replace(run, ep=ep, etp=etp)
                if next(faults_of(found, self.model), None) is None:
                    yield found

    def configurations(self, run: TrainingRun, cut: Cut) -> Iterator[Configuration]:
        """The configurations of a run of :meth:`degrees`; ``cut`` makes up for unequal layers."""
        for sharding in self.shardings(run):
            own = replace(run, sharding=sharding)
            for vp in self._options("vp", chunks(run.layers, run.pp)) if self.activations else ():
                yield from self._placed(replace(own, vp=vp), cut)
            if self.weights and passes_weights(own) and self.fixed.get("vp", 1) == 1:
                yield from self._passing_weights(own)

    def shardings(self, run: TrainingRun) -> tuple[Sharding, ...]:
        """How replicas may divide the states of a run; one alone, whatever is given, not at all."""
        if run.dense_replicas == 1:
            return (Sharding.NONE,)
        return tuple(self._options("sharding", (Sharding.ZERO1, Sharding.FSDP)))

    def _passing_weights(self, run: TrainingRun) -> Iterator[Configuration]:
        """With one stage per rank, the larger ones last: the step begins and ends with
        the first's."""
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
        """With B and W as one op, and apart; with the family that is given alone."""
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
        """Dealt evenly, and so that embedding and head are made up for."""
        if "layers_per_stage" in self.fixed:
            yield replace(run, layers_per_stage=self.fixed["layers_per_stage"])
            return
        yield run
        if run.pp > 1 and (found := cut(run)) != run.layers_by_stage:
            yield replace(run, layers_per_stage=found)

    def _dividing(self, key: str, number: int) -> Iterator[int]:
        return (each for each in self._options(key, divisors(number)) if number % each == 0)

    def _options(self, key: str, free: Any) -> Any:
        return (self.fixed[key],) if key in self.fixed else free


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """In rising order."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def chunks(layers: int, ranks: int) -> tuple[int, ...]:
    """Stages a rank: of those whose largest stage has as many layers, the fewest."""
    if ranks == 1:
        return (1,)
    largest = {-(-layers // (ranks * vp)): vp for vp in range(layers // ranks, 0, -1)}
    return tuple(sorted(largest.values()))
