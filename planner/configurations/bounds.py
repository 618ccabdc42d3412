"""Lower bounds on the step time and memory of a configuration, from sums over its layers.

Nothing is simulated, so that thousands of configurations are bounded in seconds. In the cost model
of ``predict``, every schedule satisfies:

* A rank's first op is an F of its first stage s, after the F's of all stages before s. The rank
  then runs all of its work, and waits for its exposed averaging.
* A rank's last op other than W is a B of s. After it, one microbatch returns to the first stage,
  whose W ends the step at the earliest.
* When the last stage has a microbatch, each rank holds the activations of it that its stages keep.
* A stage keeps a microbatch at least while it passes all later stages and comes back. Hence, for
  each rank, memory x span >= sum of the memory-time of its stages; M_W is held while W runs.

If B and W are one op, the way back takes the time of both. If weights are passed, only this holds:
the busiest rank runs all stages of its microbatches, and holds one microbatch of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf
from typing import TypeAlias

import numpy as np

from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.placement import Passing

from ..clusters.cluster import Cluster
from ..clusters.efficiency import Efficiency
from ..models.run import SELECTIVE, Sharding, TrainingRun
from ..models.work import LayerWork, different, states_of
from ..prediction.layer_times import OPS, CollectiveTimes, KernelTimes
from ..prediction.memory import GIB, beside, room_of
from ..prediction.setup import Setup, layers_of, placement_of
from ..prediction.step import Memo, StepTimes
from ..prediction.step_end import STEPPED, Exchange
from .configuration import Configuration, passes_weights
from .space import Space

Bound: TypeAlias = tuple[float, float]
"""Lower bounds on the step time, in milliseconds, and on the memory of the fullest device, in
GiB."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds for the configurations of a space."""

    space: Space
    _memo: Memo = field(default_factory=dict)
    _times_of: dict[tuple[Hashable, ...], LayerArrays] = field(default_factory=dict)
    _ends_of: dict[tuple[Hashable, ...], EndArrays] = field(default_factory=dict)

    def of_degrees(self, run: TrainingRun, shardings: Iterable[Sharding]) -> Bound:
        """Lower bounds for all configurations with these degrees: means over ranks, and for each
        value the best of ``shardings``."""
        found = [self._of_sharding(replace(run, sharding=sharding)) for sharding in shardings]
        steps, sizes = zip(*found, strict=True)
        return min(steps), min(sizes)

    def _of_sharding(self, run: TrainingRun) -> Bound:
        times, ends = self._times(run), self._ends(run)
        work = run.microbatches * times.work.sum() / run.pp
        least = times.work[1:-1].min() * -(-run.layers // run.pp)
        busiest = run.microbatches * max(float(times.work.max()), float(least))
        if self.space.weights and passes_weights(run):
            busiest = min(busiest, -(-run.microbatches // run.pp) * float(times.work.sum()))
        reached = self.space.cluster.efficiency
        occupied = run.microbatches * float(times.held @ _from_here(times.forward + times.back))
        held = times.held.sum() / run.pp
        averaging = _rounds(run, run.sharding) * ends.averaging.sum() / run.pp
        mean = max(work + reached.exposed * averaging, averaging)
        kept = float(ends.kept.sum() / run.pp + times.beside.min())
        room = run.pp * max(0.0, room_of(self.space.cluster) - kept)
        full = occupied / room if room else inf
        step = max(float(mean), busiest, full) + ends.optimizer.sum() / run.pp
        return float(step + reached.step_ms), float(_gib(kept + held, reached))

    def cut(self, run: TrainingRun) -> tuple[int, ...]:
        """Decoder layers of each stage, such that ranks have about equal work."""
        work = self._times(run).work
        each = float(work[1:-1].mean())
        after = float(work[run.layers + 1 :].sum())
        return balanced_cut(run.layers, float(work[0]) / each, after / each, _owners(run))

    def of(self, configuration: Configuration) -> Bound:
        run = configuration.run
        layers = _LayerSums(self._times(run), self._ends(run), run)
        if configuration.passing is Passing.WEIGHTS:
            return layers.passing_weights(self.space.cluster)
        how = self.space.cluster, configuration.splits
        return layers.step_ms(*how), layers.memory(*how)

    def _times(self, run: TrainingRun) -> LayerArrays:
        """Times and sizes of layers.

        With FSDP these are values without sharding, which need less memory for the loss, unless
        torch selects what is recomputed.
        """
        space, selects = self.space, run.sharding is Sharding.FSDP and run.recompute == SELECTIVE
        key = (*_groups(run), run.micro_batch, run.recompute, selects)
        if key not in self._times_of:
            own = run if selects else replace(run, sharding=Sharding.NONE)
            setup = Setup(space.model, own, space.cluster)
            step = StepTimes(setup, space.cluster, self._memo)
            self._times_of[key] = LayerArrays.of(step, layers_of(space.model, own))
        found = self._times_of[key]
        given_up = space.offload or (space.remat and not run.recompute)
        return found.dropped if given_up and run.pp > 1 else found

    def _ends(self, run: TrainingRun) -> EndArrays:
        """States of layers and the end of the step; with FSDP, per microbatch."""
        key = (*_groups(run), run.dp, run.sharding)
        if key not in self._ends_of:
            one = replace(run, global_batch=run.dp * run.micro_batch)
            works = layers_of(self.space.model, one)
            self._ends_of[key] = EndArrays.of(works, one, self.space.cluster)
        return self._ends_of[key]


def _groups(run: TrainingRun) -> tuple[int, ...]:
    return run.tp, run.cp, run.ep, run.etp, run.pp > 1


@dataclass(frozen=True)
class LayerArrays:
    """Arrays over layers, (L,): milliseconds for one microbatch, and bytes held per microbatch.

    ``back``: B including the recomputation before it. ``beside``: additional bytes while the layer
    runs.
    """

    forward: FloatArray
    back: FloatArray
    weight: FloatArray
    held: FloatArray
    waiting: FloatArray
    beside: FloatArray

    @property
    def work(self) -> FloatArray:
        return self.forward + self.back + self.weight

    @cached_property
    def sums(self) -> FloatArray:
        """Prefix sums over layers of forward, back, weight, held and waiting, (5, L + 1)."""
        return _before(self.forward, self.back, self.weight, self.held, self.waiting)

    @cached_property
    def dropped(self) -> LayerArrays:
        """The same with nothing held: all of it may be recomputed or offloaded."""
        return replace(self, held=0.0 * self.held, waiting=0.0 * self.waiting)

    @classmethod
    def of(cls, step: StepTimes, works: Sequence[LayerWork]) -> LayerArrays:
        def figures(work: LayerWork) -> tuple[float, ...]:
            times = step.layer(work)
            f, r, b, w = (times.of(op) for op in OPS)
            return f, r + b, w, work.m_b, work.m_w, beside(work)

        return cls(*_columns(works, figures))


@dataclass(frozen=True)
class EndArrays:
    """Arrays over layers, (L,): bytes of states that are ``kept`` and ``gathered``, and
    milliseconds of ``averaging`` and ``optimizer`` per step."""

    kept: FloatArray
    gathered: FloatArray
    averaging: FloatArray
    optimizer: FloatArray

    @cached_property
    def sums(self) -> FloatArray:
        """Prefix sums over layers of kept, averaging and optimizer, (3, L + 1)."""
        return _before(self.kept, self.averaging, self.optimizer)

    @classmethod
    def of(cls, works: Sequence[LayerWork], run: TrainingRun, cluster: Cluster) -> EndArrays:
        kernels = KernelTimes(cluster, run.precision)
        messages = CollectiveTimes(cluster, run)

        def figures(work: LayerWork) -> tuple[float, ...]:
            states = states_of(work.parameters, run)
            end = Exchange.of([work.parameters], run)
            averaging = sum(map(messages.moving, end.collectives))
            return states.kept, states.gathered, averaging, kernels.moving(STEPPED * end.updated)

        return cls(*_columns(works, figures))


def _columns(
    works: Sequence[LayerWork], figures: Callable[[LayerWork], tuple[float, ...]]
) -> list[FloatArray]:
    """One array over layers, (L,), for each of the values that ``figures`` returns."""
    known = {id(work): figures(work) for work, _ in different(works)}
    table = np.array([known[id(work)] for work in works])
    return [np.ascontiguousarray(column) for column in table.T]


class _LayerSums:
    """Sums over the layers of each stage and rank of a run."""

    def __init__(self, times: LayerArrays, ends: EndArrays, run: TrainingRun) -> None:
        self._times, self._ends, self._run = times, ends, run
        cuts = np.cumsum((0, *run.layers_by_stage)) + 1
        cuts[0], cuts[-1] = 0, len(times.forward)
        self._starts, self._owners = cuts[:-1], _owner_array(_owners(run))
        self._f, self._b, self._w, self._m_b, self._m_w = np.diff(times.sums[:, cuts])
        kept, self._averaging, self._optimizer = map(self._ranks, np.diff(ends.sums[:, cuts]))
        self._states = kept
        self._kept = kept + self._most(times.beside)
        if run.sharding is Sharding.FSDP:
            self._kept += 2 * self._most(ends.gathered)

    def step_ms(self, cluster: Cluster, splits: bool) -> float:
        """Lower bound on the step time, in milliseconds."""
        run, f, b, w = self._run, self._f, self._b, self._w
        if not splits:
            b, w = b + w, np.zeros_like(w)
        first = np.unique(self._owners, return_index=True)[1]
        ahead, behind = (np.cumsum(each)[first] - each[first] for each in (f, b))
        both, late = (run.microbatches * self._ranks(each) for each in (f + b, w))
        work = both + late
        averaging = _rounds(run, run.sharding) * self._averaging
        exposed = np.maximum(cluster.efficiency.exposed * averaging, averaging - work)
        own = float((ahead + work + exposed).max())
        way_back = float((ahead + both + behind).max() + w[0] + exposed[self._owners[0]])
        held = self._held(splits)
        occupied = held * _from_here(f + b) + np.minimum(held, self._m_w) * w
        left = np.maximum(room_of(cluster) - self._kept, 1.0)
        full = float((self._ranks(occupied) * run.microbatches / left + exposed).max())
        stepping = float(self._optimizer.max())
        return max(own, way_back, full) + stepping + cluster.efficiency.step_ms

    def passing_weights(self, cluster: Cluster) -> Bound:
        """The bounds if each rank runs all stages of its microbatches, and also holds its own
        states."""
        run, reached = self._run, cluster.efficiency
        count = np.array([len(range(rank, run.microbatches, run.pp)) for rank in range(run.pp)])
        work = count * float((self._f + self._b + self._w).sum())
        exposed = np.maximum(reached.exposed * self._averaging, self._averaging - work)
        step = float((work + exposed).max() + self._optimizer.max()) + reached.step_ms
        kept = self._states.max() + self._times.beside.max() + self._m_b.sum()
        return step, _gib(float(kept), reached)

    def memory(self, cluster: Cluster, splits: bool) -> float:
        """Lower bound on the memory of the fullest device, in GiB."""
        total = self._kept + self._ranks(self._held(splits))
        return _gib(float(total.max()), cluster.efficiency)

    def _held(self, splits: bool) -> FloatArray:
        """Bytes that each stage holds of a microbatch."""
        held: FloatArray = np.maximum(self._m_b, self._m_w) if splits else self._m_b
        return held

    def _ranks(self, stages: FloatArray) -> FloatArray:
        return np.bincount(self._owners, stages, self._run.pp).astype(np.float64)

    def _most(self, layers: FloatArray) -> FloatArray:
        """The maximum over each rank's layers, (P,)."""
        found = np.zeros(self._run.pp)
        np.maximum.at(found, self._owners, np.maximum.reduceat(layers, self._starts))
        return found


def _rounds(run: TrainingRun, sharding: Sharding) -> int:
    """The number of times per step that weights and gradients are exchanged with replicas."""
    return run.microbatches if sharding is Sharding.FSDP else 1


def _before(*rows: FloatArray) -> FloatArray:
    """Prefix sums of each row, starting with 0 and ending with the total."""
    sums: FloatArray = np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
    return sums


def _from_here(times: FloatArray) -> FloatArray:
    """Suffix sums: from each layer or stage to the last."""
    return np.cumsum(times[::-1])[::-1]


def _gib(size: float, reached: Efficiency) -> float:
    """GiB of device memory for ``size`` bytes of tensors, including the overhead of allocator and
    libraries."""
    return size * (1 + reached.fragmentation) / GIB + reached.context_gib


def _owners(run: TrainingRun) -> tuple[int, ...]:
    return placement_of(run).owners


@lru_cache(maxsize=1024)
def _owner_array(owners: tuple[int, ...]) -> IntArray:
    return np.array(owners)


@lru_cache(maxsize=4096)
def balanced_cut(
    layers: int, before: float, after: float, owners: tuple[int, ...]
) -> tuple[int, ...]:
    """Decoder layers of each stage, at least one.

    The other layers are assigned one by one to the rank with the least work, on its stage with the
    fewest layers; ties go to the last stage, which holds microbatches for the shortest time.
    ``before``, ``after``: other work on the first and last stage, in units of a decoder layer.
    """
    ranks = max(owners) + 1
    loads = [0.0] * ranks
    loads[owners[0]] += before
    loads[owners[-1]] += after
    of_rank = [[s for s, owner in enumerate(owners) if owner == rank] for rank in range(ranks)]
    counts = [1] * len(owners)
    for owner in owners:
        loads[owner] += 1.0
    for _ in range(layers - len(owners)):
        rank = min(range(ranks), key=loads.__getitem__)
        loads[rank] += 1.0
        counts[min(reversed(of_rank[rank]), key=counts.__getitem__)] += 1
    return tuple(counts)
