"""The configurations of a model on so many GPUs: what may be chosen, and what is fixed.

Chosen are the degrees (tp, pp, cp, ep and etp; dp is what is left), the microbatch, what is
recomputed, how states are sharded, the stages of a rank and where they lie, the cut, and whether
B and W are one op. A key of the run that is given is fixed. Left out is what cannot win by
``predict``'s own arithmetic: no sharding, where ``zero1`` sends and holds no more; more stages a
rank where the largest stage has as many layers with fewer. Left out too is ``zero2``, which
predictions do not charge for scattering gradients after each microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.solver.families import FAMILIES

from ..clusters.cluster import Cluster
from ..models.model import Model
from ..models.reading import ModelLike, read_model
from ..models.run import FULL, KEYS, SELECTIVE, Sharding, TrainingRun, plain_fields, without_ends
from ..models.run_faults import faults_of
from ..models.run_values import RunValues
from ..prediction.schedule_word import check_schedule
from ..prediction.setup import Setup, check_precision, order_of, placement_of, usual

Cut: TypeAlias = Callable[[TrainingRun], tuple[int, ...]]
"""Decoder layers of each stage of a run."""
DEGREES = ("tp", "pp", "vp", "dp", "cp", "ep", "etp", "micro_batch")
_NEEDED = ("gpus", "global_batch")
AUTO = "auto"
"""Recomputation as the schedule finds best."""
LEVELS = (frozenset[str](), SELECTIVE, FULL)
"""What is recomputed, where it is not fixed."""
SCHEDULES: Mapping[tuple[str, bool], tuple[str, ...]] = {
    ("linear", False): ("1f1b",),
    ("linear", True): ("zb-h1", "zb-h2"),
    ("interleaved", False): ("interleaved-1f1b",),
    ("interleaved", True): (),
    ("v", False): ("wave",),
    ("v", True): ("v-half", "v-min"),
}
"""The families that are tried, by placement and by whether B and W are apart."""
_PLACED_BY = {"linear": "1f1b", "interleaved": "interleaved-1f1b", "v": "wave"}
"""A family with the placement."""
MOST_STREAMED = 16_384
"""Pairs of a stage and a microbatch, at most, where weights are passed."""
ROUND_ROBIN = PlacementKind.ROUND_ROBIN.value
"""The placement of microbatches on ranks that pass weights."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of the space: a run whose ``schedule`` says where stages lie, and whose ranks pass
    weights where ``placement`` is ``round-robin``.

    ``splits``: B and W are ops of their own. ``families``: the schedules that are tried; where the
    schedule is not given, the optimizer looks for others. ``remat``, ``offload``: which may
    recompute whole stages, or move what they hold to the host and back, each for the microbatches
    that it pays for.
    """

    run: TrainingRun
    placement: str
    splits: bool
    families: tuple[str, ...]
    remat: bool = False
    offload: bool = False

    @property
    def name(self) -> str:
        """``tp8 pp4 dp2 vp2 b1 full zero1``; what is 1 or none is left out."""
        run = self.run
        degrees = [(key, getattr(run, key)) for key in ("tp", "pp", "dp", "cp", "ep", "vp")]
        words = [f"{key}{count}" for key, count in degrees if count > 1]
        words += [f"etp{run.etp}"] * (run.etp != run.tp) + [f"b{run.micro_batch}"]
        words += [self.recompute] if run.recompute or self.remat else []
        words += ["offload"] * self.offload + ["weights"] * (self.passing is Passing.WEIGHTS)
        words += [run.sharding.value] if run.sharding is not Sharding.NONE else []
        words += ["cut"] * (run.layers_per_stage is not None) + ["v"] * (self.placement == "v")
        return " ".join(words + ["B/W"] * self.splits)

    @property
    def passing(self) -> Passing:
        """The kind of tensors that ranks of the pipeline send each other."""
        return Passing.WEIGHTS if self.placement == ROUND_ROBIN else Passing.ACTIVATIONS

    @property
    def recompute(self) -> str:
        """The word for what is computed again."""
        return AUTO if self.remat else recomputed(self.run)


def recomputed(run: TrainingRun) -> str:
    """The word for what a run computes again."""
    return {LEVELS[0]: "none", SELECTIVE: "selective"}.get(
        run.recompute, "+".join(sorted(run.recompute))
    )


@dataclass(frozen=True)
class Space:
    """The configurations of ``base``, of which degrees, batch and levels are chosen.

    ``fixed``: the keys that are given, checked; ``family``: the schedule that is, None: any.
    ``remat``: schedules of configurations that recompute nothing else may recompute whole stages;
    ``offload``: schedules of pipelines may offload them. ``passing``: what pipelines send,
    ``activations``, ``weights`` or, ``auto``, either.
    """

    model: Model
    cluster: Cluster
    base: TrainingRun
    fixed: Mapping[str, Any]
    family: str | None
    remat: bool = False
    offload: bool = False
    passing: str = Passing.ACTIVATIONS.value

    @classmethod
    def of(cls, model: ModelLike, cluster: Cluster, given: Mapping[str, Any]) -> Space:
        """Raises InputError, with a line for each fault of what is given."""
        known, remat = read_model(model), given.get("recompute") == AUTO
        offload = given.get("offload") or "none"
        passing = given.get("passing") or Passing.ACTIVATIONS.value
        left_out = {"offload", "passing", *(["recompute"] if remat else [])}
        given = {key: value for key, value in given.items() if key not in left_out}
        values = RunValues(usual(known) | given, KEYS)
        for key in _NEEDED:
            if key not in values:
                values.faults.append(f"{key}: missing; expected a whole number >= 1")
        if remat and _family(given) is not None:
            words = "none, selective or full with a schedule that is given"
            values.faults.append(f"recompute: expected {words}, got {AUTO}")
        values.faults += _faults_of_offload(offload, cluster, _family(given))
        others = {"recompute": remat, "offload": offload == AUTO, "schedule": _family(given)}
        values.faults += _faults_of_passing(passing, [key for key, on in others.items() if on])
        plain = plain_fields(values, known)
        fixed: dict[str, Any] = {key: values.whole(key, 1) for key in DEGREES if key in values}
        whole = {key: values.whole(key, 1) for key in _NEEDED}
        for key in ("recompute", "sharding", "layers_per_stage"):
            if key in values:
                fixed[key] = plain[key]
        if "layers_per_stage" in fixed:
            fixed["layers_per_stage"] = without_ends(plain["layers_per_stage"], plain["layers"])
        if "sequence_parallel" in values:
            fixed["sequence_parallel"] = values.flag("sequence_parallel", True)
        values.raise_faults()
        base = TrainingRun(**plain | {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | whole)
        check_precision(base.precision, cluster)
        base = replace(base, layers_per_stage=None)
        space = cls(known, cluster, base, fixed, _family(given), remat, offload == AUTO, passing)
        space._check()
        return space

    def _check(self) -> None:
        """Raises InputError where nothing is left, for what is fixed first of all."""
        lines = dict.fromkeys(self._faults())
        if lines:
            raise InputError(*lines)
        if not any(self._is_any(run) for run in self.degrees()):
            fixed = ", ".join(f"{key} {_said(value)}" for key, value in self.fixed.items())
            fixed += f", schedule {self.family}" * (self.family is not None)
            if not self.activations:
                fixed += (
                    f", passing weights (at most {MOST_STREAMED} pairs of stage and microbatch)"
                )
            fixed = fixed.removeprefix(", ")
            raise InputError(
                f"gpus: expected a number over which {self.model.name} and a global_batch of "
                f"{self.base.global_batch} can be spread"
                + f" with {fixed}" * bool(fixed)
                + f", got {self.base.gpus}"
            )

    @property
    def activations(self) -> bool:
        """Whether configurations may pass activations, or have no pipeline."""
        return self.passing != Passing.WEIGHTS.value

    @property
    def weights(self) -> bool:
        """Whether pipelines may pass weights."""
        return self.passing != Passing.ACTIVATIONS.value

    def _is_any(self, run: TrainingRun) -> bool:
        """Whether the run of :meth:`degrees` has a configuration."""
        found = self.configurations(run, lambda own: own.layers_by_stage)
        return next(found, None) is not None

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
        batch = self.fixed.get("dp", 1) * self.fixed.get("micro_batch", 1)
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

    def degrees(self) -> Iterator[TrainingRun]:
        """Runs of all degrees, microbatches and levels, one stage a rank, states unsharded; where
        activations are not passed, those that can pass weights alone."""
        for spread in self._spreads():
            batch = spread.global_batch // spread.dp
            for size in self._options("micro_batch", divisors(batch)):
                run = replace(spread, micro_batch=size)
                if batch % size == 0 and (self.activations or passes_weights(run)):
                    for level in self._options("recompute", self._levels()):
                        yield replace(run, recompute=level)

    def _levels(self) -> tuple[frozenset[str], ...]:
        return LEVELS

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
        """How replicas may divide the states of a run."""
        replicas = run.dense_replicas > 1
        shared = (Sharding.ZERO1, Sharding.FSDP) if replicas else (Sharding.NONE,)
        return tuple(self._options("sharding", shared))

    def _passing_weights(self, run: TrainingRun) -> Iterator[Configuration]:
        """With one stage a rank, the larger ones last: the step begins and ends with
        the first's."""
        counts = self.fixed.get("layers_per_stage", run.layers_by_stage[::-1])
        cut = None if counts == run.layers_by_stage else counts
        own = replace(run, schedule=_PLACED_BY["linear"], layers_per_stage=cut)
        if next(faults_of(own, self.model), None) is None:
            yield Configuration(own, ROUND_ROBIN, False, ())

    def _placed(self, given: TrainingRun, cut: Cut) -> Iterator[Configuration]:
        for placement, of in _PLACED_BY.items():
            if not _has(placement, given):
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

    def _parallel(self, run: TrainingRun) -> TrainingRun:
        wanted = self.fixed.get("sequence_parallel", True)
        return replace(run, sequence_parallel=wanted and run.tp > 1)

    def _dividing(self, key: str, number: int) -> Iterator[int]:
        return (each for each in self._options(key, divisors(number)) if number % each == 0)

    def _options(self, key: str, free: Any) -> Any:
        return (self.fixed[key],) if key in self.fixed else free


def _faults_of_family(run: TrainingRun) -> list[str]:
    """Whether its stages wander, or are updated more than once a step."""
    try:
        order_of(replace(run, global_batch=4, dp=1, micro_batch=1))
    except InputError as error:
        return [line for line in error.errors if "expected a family whose" in line]
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


def passes_weights(run: TrainingRun) -> bool:
    """Whether ranks may pass weights: each has a microbatch, replicas hold whole stages, and one
    schedule with all its transfers is built within seconds."""
    few = run.pp * run.microbatches <= MOST_STREAMED
    return few and 1 < run.pp <= run.microbatches and run.sharding is not Sharding.FSDP


def _said(value: Any) -> str:
    """A value that is fixed, in words."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "+".join(sorted(value)) or "none" if isinstance(value, frozenset) else str(value)


def divisors(number: int) -> tuple[int, ...]:
    """In rising order."""
    return _divisors(number)


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def chunks(layers: int, ranks: int) -> tuple[int, ...]:
    """Stages a rank: of those whose largest stage has as many layers, the fewest."""
    if ranks == 1:
        return (1,)
    largest = {-(-layers // (ranks * vp)): vp for vp in range(layers // ranks, 0, -1)}
    return tuple(sorted(largest.values()))


def _has(placement: str, run: TrainingRun) -> bool:
    if placement == "linear":
        return run.vp == 1
    return run.vp == 2 if placement == "v" else run.vp > 1


def _family(given: Mapping[str, Any]) -> str | None:
    """The family that is given, None where any schedule is meant."""
    name = given.get("schedule")
    check_schedule(name)
    if isinstance(name, str) and name.lower().partition(":")[0] in FAMILIES:
        return name.lower()
    return None
