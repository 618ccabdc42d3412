"""The part of a prediction that does not depend on the speed of hardware: work, states, order of
ops, and shapes of layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import inf
from typing import Any, TypeAlias

from pipeloom.ir.documents.fields import MOST_PAIRS
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.families import build_family, find_family

from ..clusters.cluster import Cluster
from ..models.layers import work_of
from ..models.model import Model
from ..models.precision import Precision
from ..models.reading import ModelLike, read_model
from ..models.run import Recompute, Sharding, TrainingRun, usual
from ..models.work import (
    Collective,
    LayerWork,
    ModelWork,
    States,
    WorkKind,
    different,
    states_of,
    step_collectives,
)
from .families import check_family, placement_of, schedule_of, splits

Counted: TypeAlias = list[tuple[LayerWork, int]]
"""Distinct layers, each with the number of times that it occurs."""


@dataclass(frozen=True)
class Setup:
    """A model, and the run for which its step is predicted."""

    model: Model
    run: TrainingRun

    @classmethod
    def of(cls, model: ModelLike, given: Mapping[str, Any], cluster: Cluster) -> Setup:
        """Return the setup for ``model`` (a preset's name, a file or an object) and the settings
        ``given``, by name (docs/predict.md).

        Raises InputError if the settings are invalid, or do not match the model or ``cluster``, on
        which the run takes place.
        """
        known = read_model(model)
        run = TrainingRun.of(usual(known) | dict(given), known)
        check_precision(run.precision, cluster)
        check_family(run.schedule)
        if run.microbatches * run.stages > MOST_PAIRS:
            most = MOST_PAIRS // run.stages
            raise InputError(
                f"global_batch: expected at most {most} microbatches for "
                f"{counted(run.stages, 'stage')}, got {run.microbatches}"
            )
        return cls(known, run)

    @cached_property
    def work(self) -> ModelWork:
        """The work of all layers of the model, as it is performed on one of the ranks among which
        each layer is divided. Equal layers are the same object; see :func:`layers_of`."""
        return ModelWork(layers_of(self.model, self.run), self.run.layers_by_stage)

    @cached_property
    def stages(self) -> tuple[Counted, ...]:
        """The distinct layers of each stage, each with the number of times that it occurs."""
        return tuple(map(different, self.work.stages))

    @property
    def model_flops(self) -> float:
        """FLOPs of a step on all GPUs: three times those of the forward pass, without causal
        masking and without recomputation (Korthikanti et al., 2022, appendix A)."""
        run, forward = self.run, sum(work.model_flops for work in self.work.layers)
        return 3 * forward * run.microbatches * run.tp * run.cp * run.dp

    @cached_property
    def states(self) -> tuple[States, ...]:
        """The bytes of weights, gradients and optimizer states of each stage, on one of the ranks
        among which the stage is divided."""
        return tuple(map(self._states, self.stages))

    def _states(self, layers: Counted) -> States:
        found = States()
        for work, count in layers:
            found = found.plus(states_of(work.parameters, self.run), count)
        return found

    @cached_property
    def exchanges(self) -> tuple[list[tuple[Collective, int]], ...]:
        """For each stage, the collectives between replicas, each with the number of times that it
        runs per step."""
        run, rounds = self.run, rounds_of(self.run)
        return tuple(
            [(c, n * rounds) for work, n in layers for c in step_collectives(work.parameters, run)]
            for layers in self.stages
        )

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank of each stage, (S,)."""
        return placement_of(self.run.schedule, self.run.pp, self.run.vp).owners

    @cached_property
    def shapes(self) -> frozenset[str]:
        """The names (:meth:`shape`) of the shapes of all decoder layers and of the head."""
        works = (work for work, _ in different(self.work.layers))
        return frozenset(self.shape(work) for work in works if work.kind is not WorkKind.EMBEDDING)

    def shape(self, work: LayerWork) -> str:
        """Return a name that encodes everything that determines the time of ``work``, except which
        16-bit format is used."""
        model, run = self.model, self.run
        words = [str(work.kind), f"h{model.hidden}"]
        if work.kind in {WorkKind.EMBEDDING, WorkKind.HEAD}:
            words += [f"v{model.vocab}"]
        else:
            words += [f"a{model.heads}-{model.kv_heads}", f"f{model.width}"]
        words += [f"b{run.micro_batch}", f"s{run.seq}", f"tp{run.tp}"]
        words += [f"cp{run.cp}"] * (run.cp > 1) + [f"ep{run.ep}"] * (run.ep > 1)
        words += [str(run.precision)] * run.precision.is_narrow
        words += {Recompute.FULL: ["full"], Recompute.SELECTIVE: ["core_attn"]}.get(
            run.recompute, []
        )
        return " ".join(words + ["compiled"] * run.compile)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of the run's family for stages that all take equally long."""
        run = self.run
        return schedule_of(run.schedule, run.pp, run.vp, run.microbatches)

    @cached_property
    def splits(self) -> bool:
        """Whether the run's family runs B and W as separate ops."""
        return splits(self.schedule)

    def schedule_for(self, profile: Profile) -> Schedule:
        """Return the schedule of the run's family, ordered by the times of ``profile`` if the
        family's order depends on times."""
        if not find_family(self.run.schedule).by_times:
            return self.schedule
        return build_family(self.run.schedule, profile, self.run.microbatches, memory_limit=inf)


def rounds_of(run: TrainingRun) -> int:
    """Return how often per step weights and gradients are exchanged with replicas: once per
    microbatch with FSDP, else once."""
    return run.microbatches if run.sharding is Sharding.FSDP else 1


def check_precision(precision: Precision, cluster: Cluster) -> None:
    """Raise InputError if the cluster's GPU has no units for ``precision``."""
    gpu = cluster.gpu
    if not gpu.has(precision.units):
        known = ", ".join(each for each in Precision if gpu.has(each.units))
        raise InputError(
            f"precision: expected one of {known}, which {gpu.name} has, got {precision}"
        )


def layers_of(model: Model, run: TrainingRun) -> tuple[LayerWork, ...]:
    """Return the work of all layers, as it is performed on one of the ranks among which each layer
    is divided.

    Equal layers are the same object. Runs that differ only in settings that do not change the work
    of a layer share these objects.
    """
    sharding = run.sharding if run.sharding is Sharding.FSDP else Sharding.NONE
    cut = min(run.pp, 2) if model.tied else 1
    plain = replace(run, gpus=1, dp=1, vp=1, pp=cut, global_batch=1)
    return _layers(model, replace(plain, layers_per_stage=None, schedule="", sharding=sharding))


@cache
def _layers(model: Model, run: TrainingRun) -> tuple[LayerWork, ...]:
    """Return the work of all layers for a run in which every setting that does not change this work
    has a neutral value. All runs that differ only in these settings hence share one cached
    result."""
    return work_of(model, run).layers
