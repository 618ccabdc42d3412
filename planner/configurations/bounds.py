"""Lower bounds on the step time and memory of a configuration, computed from sums over its layers.

Nothing is simulated, so that thousands of configurations are bounded in seconds. In the cost model
of ``predict``, every schedule satisfies:

* A rank's first op is an F of its first stage s, which follows the F's of all stages before s. The
  rank then runs all of its work, and waits for the exposed part of its gradient averaging.
* A rank's last op other than W is a B of s. Afterwards, the same microbatch still runs B on all
  stages before s, and the step ends no earlier than with a W of the first stage.
* When the last stage has a microbatch, every rank holds the activations that its stages keep of
  this microbatch.
* A stage keeps the activations of a microbatch at least while the microbatch passes all later
  stages and comes back. Hence, for each rank, (memory for activations) x (span of its ops) >= the
  sum of bytes x time over its stages and microbatches; M_W is also held while W runs.

If B and W are one op, every B on the way back takes the time of both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np

from pipeloom.ir.model.ops import FloatArray, IntArray

from ..clusters.efficiency import Efficiency
from ..models.run import Sharding, TrainingRun
from ..models.work import LayerWork, different, states_of, step_collectives
from ..prediction.memory import GIB, beside, room_of
from ..prediction.rates import OPS, Rates
from ..prediction.setup import Setup, layers_of, rounds_of
from ..prediction.step import STEPPED, PredictedStep
from .configuration import Configuration
from .space import Space

Bound: TypeAlias = tuple[float, float]
"""Lower bounds on the step time, in milliseconds, and on the memory of the fullest device, in
GiB."""


class LayerArrays(NamedTuple):
    """Arrays of values of layers, of stages or of ranks: milliseconds for one microbatch, and bytes
    held per microbatch. Arrays over layers have the shape (L,).

    ``forward``: the time of F. ``back``: the time of B and of the recomputation before it.
    ``weight``: the time of W. ``held``, ``waiting``: M_B and M_W. ``beside``: additional bytes that
    are needed while the layer runs.
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


class EndArrays(NamedTuple):
    """Arrays of values of layers, of stages or of ranks.

    ``kept``: bytes of states that are held all the time. ``gathered``: bytes of weights that are
    gathered for use. ``averaging``: milliseconds of one averaging of gradients. ``optimizer``:
    milliseconds of the optimizer step.
    """

    kept: FloatArray
    gathered: FloatArray
    averaging: FloatArray
    optimizer: FloatArray


@dataclass(frozen=True)
class Bounds:
    """A calculator of lower bounds for the configurations of ``space``.

    ``rates``: the times of kernels and messages on the space's cluster.
    """

    space: Space
    rates: Rates
    _known: dict[tuple[Hashable, ...], FloatArray] = field(default_factory=dict)

    @property
    def reached(self) -> Efficiency:
        return self.space.cluster.efficiency

    def of_degrees(self, run: TrainingRun, shardings: Iterable[Sharding]) -> Bound:
        """Return lower bounds for all configurations with the degrees of ``run``: on the step time
        in milliseconds, and on the memory of the fullest device in GiB.

        They are computed from averages over ranks. Each is the minimum over ``shardings``, the
        kinds of sharding that the configurations may use.
        """
        found = [self._of_sharding(replace(run, sharding=sharding)) for sharding in shardings]
        steps, sizes = zip(*found, strict=True)
        return min(steps), min(sizes)

    def _of_sharding(self, run: TrainingRun) -> Bound:
        times, ends = self._times(run), self._ends(run)
        kept, _, averaging, optimizer = (values.sum() / run.pp for values in ends)
        each, whole = times.work, float(times.work.sum())
        least = each[1:-1].min() * -(-run.layers // run.pp)
        busiest = run.microbatches * max(float(each.max()), float(least))
        kept, averaging = kept + times.beside.min(), averaging * rounds_of(run)
        mean = run.microbatches * whole / run.pp + self.reached.exposed * averaging
        occupied = run.microbatches * float(times.held @ _from_here(times.forward + times.back))
        room = run.pp * max(0.0, room_of(self.space.cluster) - kept)
        full = occupied / room if room else inf
        step = max(float(mean), float(averaging), busiest, full) + optimizer
        return float(step + self.reached.step_ms), self._gib(kept + times.held.sum() / run.pp)

    def cut(self, run: TrainingRun) -> tuple[int, ...]:
        """Return the number of decoder layers of each stage for the placement of ``run``, chosen
        such that ranks have about equal work."""
        work = self._times(run).work
        each = float(work[1:-1].mean())
        after = float(work[run.layers + 1 :].sum())
        owners = Configuration(run, False, ()).placement.owners
        return balanced_cut(run.layers, float(work[0]) / each, after / each, owners)

    def of(self, configuration: Configuration) -> Bound:
        """Return lower bounds for all schedules of the configuration: on the step time in
        milliseconds, and on the memory of the fullest device in GiB."""
        run = configuration.run
        cuts = np.cumsum((0, *run.layers_by_stage))[:-1] + 1
        cuts[0] = 0
        layers, last = self._times(run), self._ends(run)
        of_stage = LayerArrays(*np.add.reduceat(layers, cuts, axis=1))
        ends = EndArrays(*np.add.reduceat(last, cuts, axis=1))
        running = np.maximum.reduceat(layers.beside, cuts)
        owners = np.array(configuration.placement.owners)
        gathered = _most(np.maximum.reduceat(last.gathered, cuts), owners)
        kept = np.bincount(owners, ends.kept) + _most(running, owners) + 2 * gathered
        held = of_stage.held
        if configuration.splits:
            held = np.maximum(held, of_stage.waiting)
        else:
            whole, nothing = of_stage.back + of_stage.weight, np.zeros_like(held)
            of_stage = of_stage._replace(back=whole, weight=nothing)
        of_stage = of_stage._replace(held=held)
        step = self._step_ms(configuration, of_stage, ends, kept)
        return step, self._gib(float((kept + np.bincount(owners, held)).max()))

    def _step_ms(
        self, configuration: Configuration, stages: LayerArrays, ends: EndArrays, kept: FloatArray
    ) -> float:
        """Return a lower bound on the step time, in milliseconds.

        ``stages``, ``ends``: the values of the stages. ``kept``: for each rank, the bytes on its
        device that are not activations, (P,).
        """
        run, owners = configuration.run, np.array(configuration.placement.owners)
        f, b, w, held, waiting, _ = stages

        def ranks(values: FloatArray) -> FloatArray:
            return np.bincount(owners, values).astype(np.float64)

        first = np.unique(owners, return_index=True)[1]
        ahead, behind = (np.cumsum(each)[first] - each[first] for each in (f, b))
        both, late = (run.microbatches * ranks(each) for each in (f + b, w))
        exposed = self._exposed(run, ranks(ends.averaging), both + late)
        own = (ahead + both + late + exposed).max()
        way_back = (ahead + both + behind).max() + w[0] + exposed[owners[0]]
        occupied = held * _from_here(f + b) + np.minimum(held, waiting) * w
        left = np.maximum(room_of(self.space.cluster) - kept, 1.0)
        full = (ranks(occupied) * run.microbatches / left + exposed).max()
        stepping = ranks(ends.optimizer).max() + self.reached.step_ms
        return float(max(own, way_back, full) + stepping)

    def _exposed(self, run: TrainingRun, averaging: FloatArray, work: FloatArray) -> FloatArray:
        total = rounds_of(run) * averaging
        return np.maximum(self.reached.exposed * total, total - work)

    def _gib(self, size: float) -> float:
        """Return the GiB of device memory that ``size`` bytes of tensors occupy, including the
        overhead of the allocator and of libraries."""
        return float(size * (1 + self.reached.fragmentation) / GIB + self.reached.context_gib)

    def _times(self, run: TrainingRun) -> LayerArrays:
        """Return the times and sizes of layers, (L,) each.

        For FSDP, the values without sharding are used: with them the loss needs less memory, so
        that the bound remains valid. Exception: for FSDP with selective recomputation, its own
        values are used, as torchtitan selects the ops to recompute.
        """
        key = (*_groups(run), run.micro_batch, run.recompute, run.torch_selects)
        if key not in self._known:
            own = run if run.torch_selects else replace(run, sharding=Sharding.NONE)
            step = PredictedStep(Setup(self.space.model, own), self.rates)

            def figures(work: LayerWork) -> tuple[float, ...]:
                f, r, b, w = map(step.layer(work).of, OPS)
                return f, r + b, w, work.m_b, work.m_w, beside(work)

            self._known[key] = _columns(own, self.space, figures)
        return LayerArrays(*self._known[key])

    def _ends(self, run: TrainingRun) -> EndArrays:
        """Return the bytes of each layer's states, and its times at the end of the step, (L,) each.
        With FSDP, the time of averaging is that for one microbatch."""
        key = (*_groups(run), run.dp, run.sharding)
        if key not in self._known:

            def figures(work: LayerWork) -> tuple[float, ...]:
                states = states_of(work.parameters, run)
                averaging = sum(map(self.rates.sending, step_collectives(work.parameters, run)))
                stepping = self.rates.moving(STEPPED * states.updated)
                return states.kept, states.gathered, averaging, stepping

            self._known[key] = _columns(run, self.space, figures)
        return EndArrays(*self._known[key])


def _columns(
    run: TrainingRun, space: Space, figures: Callable[[LayerWork], tuple[float, ...]]
) -> FloatArray:
    """Return an array of the values of all layers, (V, L), with a column for each layer.

    ``figures``: a function that returns the V values of a layer.
    """
    works = layers_of(space.model, run)
    known = {id(work): figures(work) for work, _ in different(works)}
    return np.array([known[id(work)] for work in works]).T.copy()


def _groups(run: TrainingRun) -> tuple[int, ...]:
    return run.tp, run.cp, run.ep, run.etp, run.pp > 1


def _most(stages: FloatArray, owners: IntArray) -> FloatArray:
    """Return, for each rank, the maximum of ``stages`` over the stages of this rank, (P,).

    ``stages``: a value of each stage, (S,). ``owners``: the rank of each stage, (S,).
    """
    found = np.zeros(owners.max() + 1)
    np.maximum.at(found, owners, stages)
    return found


def _from_here(times: FloatArray) -> FloatArray:
    """Return suffix sums: for each layer or stage, the sum over it and all later ones."""
    return np.cumsum(times[::-1])[::-1]


@lru_cache(maxsize=4096)
def balanced_cut(
    layers: int, before: float, after: float, owners: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the number of decoder layers of each stage, at least one.

    After each stage has got one layer, the remaining layers are assigned one by one: to the rank
    with the least work, and on this rank to the stage with the fewest layers. If several of its
    stages have the fewest, the last of them gets the layer, as it holds microbatches for the
    shortest time.

    ``layers``: the number of decoder layers. ``before``, ``after``: other work on the first and on
    the last stage, in units of a decoder layer. ``owners``: the rank of each stage.
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
