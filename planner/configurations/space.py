"""The space of configurations of a model on a number of GPUs: which settings of a training run (its
*keys*) are chosen, and which are fixed.

The chosen keys are those of :data:`AXES`, the sharding of states, the number of stages per rank and
their placement, the cut of layers into stages, and whether B and W are one op. Keys that the user
gives are fixed.

Two options are omitted because they cannot be the best under the cost model of ``predict``: no
sharding, as ``zero1`` sends and holds no more; and more stages per rank than are needed for the
same number of layers in the largest stage. ``zero2`` is omitted too, as predictions do not include
its reduce-scatter after each microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, Self, TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.units import counted

from ..clusters.cluster import Cluster
from ..inputs.words import memory_limit_of
from ..models.model import Model
from ..models.run import (
    Recompute,
    Sharding,
    TrainingRun,
    faults_of,
    usual,
    values_of,
    words_of,
)
from ..prediction.families import check_family
from ..prediction.memory import GIB
from ..prediction.setup import Setup, check_precision
from ..requests.plans import PlanRequest
from .configuration import PLACEMENTS, Configuration, families_of


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of ``number`` in ascending order."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


Cut: TypeAlias = Callable[[TrainingRun], tuple[int, ...]]
"""Returns the number of decoder layers of each stage of a run."""
AXES: Mapping[str, Callable[[Model, TrainingRun], Collection[Any]]] = {
    "tp": lambda _, run: divisors(run.gpus),
    "sequence_parallel": lambda _, run: (run.sequence_parallel and run.tp > 1,),
    "pp": lambda _, run: divisors(run.gpus // run.tp),
    "cp": lambda _, run: divisors(run.gpus // (run.tp * run.pp)),
    "dp": lambda _, run: (max(1, run.gpus // (run.tp * run.pp * run.cp)),),
    "etp": lambda model, run: dict.fromkeys((run.tp, 1)) if model.experts else (run.tp,),
    "ep": lambda model, _: divisors(model.experts.count) if model.experts else (1,),
    "micro_batch": lambda _, run: divisors(max(1, run.global_batch // run.dp)),
    "recompute": lambda *_: tuple(Recompute),
}
"""For each key that is chosen, a function that returns the values to try, given the model and a run
in which the keys before it in this table are set."""
FIXED = (*(key for key in AXES if key != "sequence_parallel"), "vp", "sharding", "layers_per_stage")
"""The keys that are chosen unless the user gives them, which fixes them."""


@dataclass(frozen=True)
class Space:
    """A space of configurations: all combinations of values for the settings that are to be chosen.

    ``base``: a training run with the settings that all configurations share. ``fixed``: the values,
    already validated, of those keys of :data:`FIXED` that the user gave; the other keys of
    :data:`FIXED` are chosen. ``request``: the arguments of ``plan``. ``headroom``: GiB that plans
    leave free on each device, already subtracted from the memory in ``cluster``.
    """

    request: PlanRequest
    model: Model
    cluster: Cluster
    base: TrainingRun
    fixed: Mapping[str, Any]
    headroom: float

    @classmethod
    def of(cls, request: PlanRequest, model: Model, cluster: Cluster) -> Self:
        """Return the space for a request.

        Raises InputError, with one line per fault, if the request is invalid or its space is empty.
        """
        words = words_of(usual(model) | {"sequence_parallel": True} | request.given)
        lacking = [key for key in ("gpus", "global_batch") if not words.has(key)]
        words.faults += [f"{key}: missing; expected a whole number >= 1" for key in lacking]
        read = values_of(words, model)
        words.raise_faults()
        if request.schedule is not None:
            check_family(request.schedule)
        fixed = {key: read[key] for key in FIXED if words.has(key)}
        read |= {"sequence_parallel": words.flag("sequence_parallel", default=True)}
        read |= dict.fromkeys(("tp", "pp", "vp", "cp", "dp", "ep", "etp", "micro_batch"), 1)
        base = TrainingRun(**read | {"layers_per_stage": None, "schedule": "1f1b"})
        check_precision(base.precision, cluster)
        headroom = _headroom(request.headroom, cluster)
        gpu = cluster.gpu.model_copy(update={"memory_gib": cluster.gpu.memory_gib - headroom})
        cluster = cluster.model_copy(update={"gpu": gpu})
        space = cls(request, model, cluster, base, fixed, headroom)
        space._check()
        return space

    def __str__(self) -> str:
        return f"{self.model.name} on {counted(self.base.gpus, 'GPU')} of {self.cluster.name}"

    @property
    def family(self) -> str | None:
        """The family of schedules that the user gave, or None if any schedule may be chosen."""
        return None if self.request.schedule is None else self.request.schedule.lower()

    @property
    def device_gib(self) -> float:
        """The memory of a device in GiB, including the headroom that plans leave free."""
        return self.cluster.gpu.memory_gib + self.headroom

    def degrees(self) -> Iterator[TrainingRun]:
        """Yield the valid runs with all combinations of the keys of :data:`AXES`, each with one
        stage per rank and without sharding.
        """
        for run in self._along(tuple(AXES), self.base):
            if self._valid(run):
                yield run

    def _along(self, keys: tuple[str, ...], run: TrainingRun) -> Iterator[TrainingRun]:
        """Yield ``run`` with each combination of the values to try for ``keys``."""
        if not keys:
            yield run
            return
        for value in self._options(keys[0], AXES[keys[0]](self.model, run)):
            yield from self._along(keys[1:], replace(run, **{keys[0]: value}))

    def _options(self, key: str, free: Collection[Any]) -> Collection[Any]:
        return (self.fixed[key],) if key in self.fixed else free

    def _valid(self, run: TrainingRun) -> bool:
        return next(faults_of(run, self.model), None) is None

    def configurations(self, run: TrainingRun, cut: Cut) -> Iterator[Configuration]:
        """Yield the configurations for ``run``, one of the runs of :meth:`degrees`.

        ``cut``: a function that returns a cut into stages of about equal work for a placement. This
        cut is tried in addition to the one with equal numbers of layers.
        """
        for sharding in self.shardings(run):
            for split in self._cuts(replace(run, sharding=sharding), cut):
                yield from self._scheduled(split)

    def shardings(self, run: TrainingRun) -> tuple[Sharding, ...]:
        """Return the kinds of sharding of states over replicas to try for ``run``.

        There is only ``none`` if the run has a single replica.
        """
        if run.dense_replicas == 1:
            return (Sharding.NONE,)
        return tuple(self._options("sharding", (Sharding.ZERO1, Sharding.FSDP)))

    def _cuts(self, given: TrainingRun, cut: Cut) -> Iterator[TrainingRun]:
        """Yield ``given`` with each number of stages per rank, each placement and each cut.

        The cuts are: equal numbers of layers, and what ``cut`` returns, which compensates for the
        work of embedding and head. A cut that the user gave replaces both. Invalid runs are left
        out.
        """
        for vp in self._options("vp", chunks(given.layers, given.pp)):
            placed = families_of(vp)
            for kind in PLACEMENTS:
                fused, split = placed.get(kind, ((), ()))
                if not fused + split:
                    continue
                run = replace(given, vp=vp, schedule=(fused + split)[0])
                counts = [self.fixed.get("layers_per_stage")]
                if counts[0] is None and run.pp > 1 and self._valid(run):
                    found = cut(run)
                    counts += [found] * (found != run.layers_by_stage)
                own = (replace(run, layers_per_stage=count) for count in counts)
                yield from filter(self._valid, own)

    def _scheduled(self, run: TrainingRun) -> Iterator[Configuration]:
        """Yield the configuration of ``run`` with B and W as one op and, if it has a pipeline, also
        the one with B and W as separate ops.

        If the user gave a family, only the family's configuration is yielded, and nothing if the
        family has another placement than ``run``.
        """
        piped, made = run.pp > 1, Configuration(run, False, ())
        if self.family is not None:
            own = replace(made, run=replace(run, schedule=self.family), families=(self.family,))
            with suppress(InputError):
                if own.placement == made.placement:
                    yield replace(own, splits=Setup(self.model, own.run).splits)
            return
        families = families_of(run.vp)[made.placement.kind]
        for split in (False, True) if piped else (False,):
            yield replace(made, splits=split, families=families[split])

    def _check(self) -> None:
        """Raise InputError if the space is empty.

        The message lists the faults that all combinations of keys share or, if there are none, the
        keys that the user fixed.
        """
        even: Cut = lambda run: run.layers_by_stage  # noqa: E731
        if any(next(self.configurations(run, even), None) for run in self.degrees()):
            return
        every: list[set[str]] = []
        for run in self._along(tuple(AXES), self.base):
            for vp in self._options("vp", (1,)):
                own = replace(run, vp=vp, layers_per_stage=self.fixed.get("layers_per_stage"))
                every.append({*faults_of(own, self.model)})
        if faults := sorted(set.intersection(*every)):
            raise InputError(*faults)
        words = [f"{key} {in_words(value)}" for key, value in self.fixed.items()]
        words += [] if self.family is None else [f"schedule {self.family}"]
        raise InputError(
            f"gpus: expected a number over which {self.model.name} and a global_batch of "
            f"{self.base.global_batch} can be spread{' with ' * bool(words)}{', '.join(words)}, "
            f"got {self.base.gpus}"
        )


def in_words(value: Any) -> str:
    """Return the value of a setting in command-line syntax, such as ``12,14`` for a tuple."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _headroom(given: float | str | None, cluster: Cluster) -> float:
    """Return the memory that plans leave free on each device, in GiB.

    ``given``: the size that the user gave; None or ``none`` means 0. Raises InputError if it is not
    a size, or not less than the memory of a device.
    """
    size = (memory_limit_of(given, name="headroom") or 0.0) / GIB
    if size == inf:  # the word "none"
        return 0.0
    if 0 < size < 1e-3:
        raise InputError(f"headroom: expected a size such as 4GB, got {given:g} bytes")
    if size >= cluster.gpu.memory_gib:
        device = f"{cluster.gpu.memory_gib:g} GiB of {cluster.gpu.name}"
        raise InputError(f"headroom: expected less than the {device}, got {size:.4g} GiB")
    return size


def chunks(layers: int, ranks: int) -> tuple[int, ...]:
    """Return the numbers of stages per rank to try, in ascending order.

    ``layers``, ``ranks``: the numbers of layers and of ranks. If the largest stage has the same
    number of layers with several numbers of stages per rank, only the smallest of these is tried.
    With a single rank, only one stage is tried.
    """
    if ranks == 1:
        return (1,)
    largest = {-(-layers // (ranks * vp)): vp for vp in range(layers // ranks, 0, -1)}
    return tuple(sorted(largest.values()))
