"""The part of a prediction that does not depend on speeds: work, order of ops, shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, reduce
from math import inf
from operator import add
from typing import Any

import numpy as np

from pipeloom.ir.documents.fields import MOST_PAIRS
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import IntArray, OpKind, fields_of, offsets_of
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Updates
from pipeloom.ir.units import counted
from pipeloom.solver.families import build_family, find_family

from ..clusters.cluster import Cluster
from ..models.layers import work_of
from ..models.model import Model
from ..models.precision import Precision
from ..models.reading import ModelLike, read_model
from ..models.run import Sharding, TrainingRun, usual
from ..models.work import LayerWork, ModelWork, States, WorkKind, different, states_of
from .schedule_word import refused
from .step_end import Exchange


@dataclass(frozen=True)
class Setup:
    """A model, a run, and a cluster."""

    model: Model
    run: TrainingRun
    cluster: Cluster

    @classmethod
    def of(cls, model: ModelLike, run: Mapping[str, Any], cluster: Cluster) -> Setup:
        """The setup for a model, given by name or document, and the keys of a run.

        Models with learned positions (GPT, OPT) have unfused attention and no sequence parallelism
        by default, as their published runs predate both. Raises InputError if the run does not
        match the model.
        """
        known = read_model(model)
        found = TrainingRun.of(usual(known) | dict(run), known)
        check_precision(found.precision, cluster)
        if found.microbatches * found.stages > MOST_PAIRS:
            most = MOST_PAIRS // found.stages
            raise InputError(
                f"global_batch: expected at most {most} microbatches for "
                f"{counted(found.stages, 'stage')}, got {found.microbatches}"
            )
        return cls(known, found, cluster)

    @cached_property
    def work(self) -> ModelWork:
        """The work of all layers on one rank. Equal layers are one object, also across setups."""
        return ModelWork(layers_of(self.model, self.run), self.run.layers_by_stage)

    @property
    def model_flops(self) -> float:
        """FLOPs of a step on all GPUs: three times those of the forward pass, without causal
        masking or recomputation (Korthikanti et al., 2022, appendix A)."""
        run, forward = self.run, sum(work.model_flops for work in self.work.layers)
        return 3 * forward * run.microbatches * run.tp * run.cp * run.dp

    @cached_property
    def shapes(self) -> frozenset[str]:
        """The names of the shapes of decoder layers and head."""
        works = (work for work, _ in different(self.work.layers))
        return frozenset(self.shape(work) for work in works if work.kind is not WorkKind.EMBEDDING)

    @cached_property
    def states(self) -> tuple[States, ...]:
        """The states of each stage: weights, gradients and optimizer states."""
        return tuple(
            reduce(add, (states_of(work.parameters, self.run) for work in works))
            for works in self.work.stages
        )

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of each rank with its replicas."""
        stages = [*zip(self.owners, self.work.stages, strict=True)]
        return tuple(
            Exchange.of((w.parameters for o, works in stages if o == rank for w in works), self.run)
            for rank in range(self.run.pp)
        )

    @cached_property
    def counted_stages(self) -> tuple[list[tuple[LayerWork, int]], ...]:
        """The distinct layers of each stage, and the number of each."""
        return tuple(map(different, self.work.stages))

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank of each stage."""
        return placement_of(self.run).owners

    def shape(self, work: LayerWork) -> str:
        """A name for everything that determines the time of ``work``, except 16-bit formats."""
        model, run = self.model, self.run
        words = [str(work.kind), f"h{model.hidden}"]
        if work.kind in {WorkKind.EMBEDDING, WorkKind.HEAD}:
            words += [f"v{model.vocab}"]
        else:
            words += [f"a{model.heads}-{model.kv_heads}", f"f{model.width}"]
        words += [f"b{run.micro_batch}", f"s{run.seq}", f"tp{run.tp}"]
        words += [f"cp{run.cp}"] * (run.cp > 1) + [f"ep{run.ep}"] * (run.ep > 1)
        words += [str(run.precision)] * run.precision.is_narrow
        words += ["+".join(sorted(run.recompute))] * bool(run.recompute)
        return " ".join(words + ["compiled"] * run.compile)

    @property
    def order(self) -> OpOrder:
        """The order of ops of the run's family for equal stages."""
        run = self.run
        return order_of(run.schedule, run.pp, run.vp, run.microbatches)

    def order_for(self, profile: Profile) -> OpOrder:
        """The order of ops of the run's family for the stages of ``profile``."""
        order, name = self.order, _named(self.run.schedule, self.run.vp)
        if not find_family(name).by_times:
            return order
        return OpOrder(build_family(name, profile, self.run.microbatches, memory_limit=inf))


def check_precision(precision: Precision, cluster: Cluster) -> None:
    gpu = cluster.gpu
    if not gpu.has(precision.units):
        known = ", ".join(each for each in Precision if gpu.has(each.units))
        raise InputError(
            f"precision: expected one of {known}, which {gpu.name} has, got {precision}"
        )


_LAYERS: dict[LayerWork, LayerWork] = {}


def layers_of(model: Model, run: TrainingRun) -> tuple[LayerWork, ...]:
    """The work of all layers on one rank. Equal layers are one object, also across runs."""
    sharding = run.sharding if run.sharding is Sharding.FSDP else Sharding.NONE
    cut = min(run.pp, 2) if model.tied else 1
    plain = replace(run, gpu=None, gpus=1, dp=1, vp=1, pp=cut, global_batch=1)
    return _layers(model, replace(plain, layers_per_stage=None, schedule="", sharding=sharding))


@cache
def _layers(model: Model, run: TrainingRun) -> tuple[LayerWork, ...]:
    """The layers of a run whose irrelevant keys have been removed."""
    layers = work_of(model, run).layers
    known = {id(work): _LAYERS.setdefault(work, work) for work, _ in different(layers)}
    return tuple(known[id(work)] for work in layers)


def placement_of(run: TrainingRun, passing: Passing = Passing.ACTIVATIONS) -> Placement:
    """The placement of stages by the run's family; if weights are passed, that of microbatches."""
    if passing is Passing.WEIGHTS:
        return Placement.round_robin(run.pp)
    return _placement(_named(run.schedule, run.vp), run.pp, run.vp)


@lru_cache(maxsize=256)
def _placement(family: str, ranks: int, chunks: int) -> Placement:
    return find_family(family).placed(Profile((_EQUAL,) * (ranks * chunks), ranks))[1]


_EQUAL = StageProfile(1.0, 1.0, 1.0, 1.0, 0.0)


@dataclass(frozen=True, eq=False)
class OpOrder:
    """The order of ops of a schedule, also as flat arrays."""

    schedule: Schedule

    @cached_property
    def flat(self) -> tuple[IntArray, IntArray]:
        """All ops, rank by rank, (N,), and the offset of each rank, (P + 1,)."""
        order = self.schedule.order
        return np.concatenate(order).astype(np.int64), offsets_of(order)

    @cached_property
    def splits(self) -> bool:
        """Whether B and W are separate ops for some microbatch."""
        kinds, _, _ = fields_of(self.flat[0])
        return bool((kinds == OpKind.W).any())


def _named(family: str, chunks: int) -> str:
    """The family's name with the number that gives it ``chunks`` stages per rank, such as
    ``wave:2``."""
    several = {"interleaved-1f1b": chunks, "interleaved-1f1b-grouped": chunks, "looped-bfs": chunks}
    count = several.get(family) or (family == "wave" and chunks // 2)
    return f"{family}:{count}" if count else family


@lru_cache(maxsize=256)
def order_of(family: str, ranks: int, chunks: int, microbatches: int) -> OpOrder:
    """The order of ops of a family for equal stages. Raises InputError."""
    profile = Profile((_EQUAL,) * (ranks * chunks), ranks)
    try:
        found = build_family(_named(family, chunks), profile, microbatches)
    except InputError as error:
        raise error.within("schedule") from None
    needed = found.problem.stages // ranks
    if needed != chunks:
        raise InputError(f"vp: expected {needed}, as {family} has, got {chunks}: add --vp {needed}")
    owners = found.problem.placement.matrix(ranks * chunks, microbatches)
    if found.updates is not Updates.ITERATION:
        raise refused(family, ": it updates weights several times per step")
    if found.transfers or (owners != owners[:, :1]).any():
        raise refused(family, ": a stage is on several ranks")
    return OpOrder(found)
