"""The configurations of a model on so many GPUs: what may be chosen, and what is fixed.

Chosen are the degrees (tp, pp, cp, ep and etp; dp is what is left), the microbatch, what is
recomputed, how states are sharded, the stages of a rank and where they lie, the cut, and whether
B and W are one op. A key of the run that is given is fixed. Left out is what cannot win by
``predict``'s own arithmetic: no sharding, where ``zero1`` sends and holds no more; more stages a
rank where the largest stage has as many layers with fewer. Left out too is ``zero2``, which
predictions do not charge for scattering gradients after each microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self, TypeAlias

from pipeloom.ir.errors import InputError

from ..clusters.cluster import Cluster
from ..models.reading import ModelLike
from ..models.run import Sharding, TrainingRun
from ..models.run_faults import faults_of
from ..prediction.setup import Setup, placement_of
from .configuration import (
    LEVELS,
    PLACED_BY,
    ROUND_ROBIN,
    SCHEDULES,
    Configuration,
    has_placement,
    passes_weights,
)
from .given import Given

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
        """Runs of all degrees, microbatches and levels, one stage a rank, states unsharded; where
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
        """With one stage a rank, the larger ones last: the step begins and ends with
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
