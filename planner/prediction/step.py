"""A step: stages' times from their layers, the simulated schedule, and the end of the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TypeAlias

import numpy as np

from pipeloom.ir.cost.memory_footprint import footprint
from pipeloom.ir.cost.remat import choice_of, pulled
from pipeloom.ir.cost.simulator import Simulator, simulate, timed
from pipeloom.ir.model.layered_profile import joined
from pipeloom.ir.model.links import Link, Links, Sharing
from pipeloom.ir.model.ops import FloatArray, OpKind, fields_of
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, TransferKind

from ..clusters.cluster import Cluster, ClusterLink
from ..models.run import FULL
from ..models.work import Group, LayerWork, different
from .layer_times import OPS, CollectiveTimes, KernelTimes, LayerTimes, Traffic, layer_times
from .setup import OpOrder, Setup
from .step_end import StepTail

TOKEN_BYTES = 8
Memo: TypeAlias = dict[tuple[int, tuple[int, ...], float], LayerTimes]
"""Times of layers shared by several steps on one cluster, by the identity of the layer's work, its
groups' sizes, and its factor."""


@dataclass(frozen=True)
class StepTimes:
    """The times of a step of ``setup`` on ``cluster``, which may differ from the setup's only in
    efficiency."""

    setup: Setup
    cluster: Cluster
    memo: Memo = field(default_factory=dict, compare=False)
    measured: tuple[StageProfile, ...] = ()
    """Measured layers, which replace the calculated ones."""
    planned: OpOrder | None = None
    """An order of ops that replaces the family's."""
    remat: bool = False
    """Whether ``planned`` may recompute whole stages, of which only input and output are kept."""
    offload: bool = False
    """Whether it may move the stages' other activations to the host and back."""
    passing: Passing = Passing.ACTIVATIONS
    """``weights``: microbatches are distributed round-robin over ranks, and each rank owns a
    stage."""

    @cached_property
    def kernels(self) -> KernelTimes:
        return KernelTimes(self.cluster, self.setup.run.precision)

    @cached_property
    def messages(self) -> CollectiveTimes:
        return CollectiveTimes(self.cluster, self.setup.run)

    @cached_property
    def layers(self) -> dict[int, LayerTimes]:
        """The times of each distinct layer, by the identity of its work."""
        return {id(work): self.layer(work) for work, _ in different(self.setup.work.layers)}

    def layer(self, work: LayerWork) -> LayerTimes:
        """The times of a layer, including the calibrated factor of its shape."""
        factor = self.cluster.efficiency.shapes.get(self.setup.shape(work), 1.0)
        run = self.setup.run
        key = id(work), (run.tp, run.cp, run.ep, run.etp), factor
        if key not in self.memo:
            self.memo[key] = layer_times(work, self.kernels, self.messages, factor)
        return self.memo[key]

    def scheduled(self, family: str) -> StepTimes:
        """The same step with the order of ops, and the placement, of another family."""
        run = replace(self.setup.run, schedule=family)
        return replace(self, setup=replace(self.setup, run=run))

    @cached_property
    def profile(self) -> Profile:
        """The pipeline profile: one entry per stage, and links between the ranks of one replica."""
        return self.profile_for((self.planned or self.setup.order).splits)

    @cached_property
    def safe_profile(self) -> Profile:
        """The same with M_B >= M_W, so that its memory is valid for every schedule."""
        return self.profile_for(True)

    @property
    def raised(self) -> tuple[int, ...]:
        """The stages whose M_B is raised in :attr:`safe_profile`."""
        pairs = zip(self.safe_profile.stages, self.profile_for(False).stages, strict=True)
        return tuple(s for s, (safe, own) in enumerate(pairs) if safe.m_b > own.m_b)

    def profile_for(self, splits: bool) -> Profile:
        """The profile for a schedule with B and W as separate ops (``splits``) or as one op.

        The cost model requires M_W <= M_B, but recomputed inputs and output gradients that wait for
        W can exceed it. If B and W are separate, M_B is raised to M_W; otherwise nothing waits.
        """
        costs = self._measured_stages() or map(self._stage, self.setup.counted_stages)
        stages = []
        for own, states in zip(costs, self.setup.states, strict=True):
            m_b = max(own.m_b, own.m_w) if splits else own.m_b
            held = replace(own, m_b=m_b, m_w=min(m_b, own.m_w), weight_bytes=states.weights)
            held = replace(held, grad_bytes=states.gradients, optimizer_bytes=states.optimizer)
            stages.append(held)
        run, host = self.setup.run, self.cluster.host if self.offload else None
        if self.remat or host:
            stages = [*self._with_remat(stages, run.tokens * TOKEN_BYTES)]
        memory = self.cluster.gpu.memory_gib * 2**30
        return Profile(
            tuple(stages),
            run.pp,
            links=self._links(),
            device_memory=(memory,) * run.pp,
            name=f"{self.setup.model.name} on {self.cluster.name}",
            host_link=replace(self._reached(host), latency=host.latency) if host else None,
        )

    def _with_remat(self, stages: list[StageProfile], size: float) -> Iterator[StageProfile]:
        """Stages that may be recomputed or offloaded, except their inputs and outputs. ``size``:
        bytes of the first stage's input."""
        for stage in stages:
            sent = (stage.activation_bytes or 0.0) if stage is not stages[-1] else 0.0
            kept = min(stage.m_b, size + sent)
            again = (stage.t_f, kept) if self.remat else (None, None)
            out = kept if self.offload else None
            yield replace(stage, t_r=again[0], m_r=again[1], m_o=out)
            size = sent

    def _stage(self, works: list[tuple[LayerWork, int]]) -> StageProfile:
        times = [(self.layers[id(work)], count) for work, count in works]
        f, r, b, w = (sum(count * each.of(op) for each, count in times) for op in OPS)
        held = sum(count * work.m_b for work, count in works)
        waiting = sum(count * work.m_w for work, count in works)
        return StageProfile(f, r + b, w, held, waiting, works[-1][0].message_bytes)

    def _measured_stages(self) -> list[StageProfile]:
        """The measured layers, joined into stages. With full recomputation, the times of layers
        that have t_r include it."""
        layers = iter(self.measured)
        full = self.setup.run.recompute == FULL
        return [
            joined([_recomputed(layer) if full else layer for layer in islice(layers, len(works))])
            for works in self.setup.work.stages
            if self.measured
        ]

    def _links(self) -> Links | None:
        """Links between pipeline ranks, some of which may share a node.

        All messages that leave a rank share its port, as do all that reach it: passed weights go
        from an owner to many ranks.
        """
        run, node = self.setup.run, self.cluster.gpus_per_node
        if run.pp == 1:
            return None
        apart = run.tp * run.cp * run.dp
        inside, between = map(self._reached, (self.cluster.inside, self.cluster.between))
        if apart * run.pp <= node:
            return Links(inside, shared=Sharing.PORTS)
        at = [rank * apart // node for rank in range(run.pp)]
        near = ((b, a, inside) for a in range(run.pp) for b in range(a) if at[a] == at[b])
        return Links(between, tuple(near), Sharing.PORTS)

    @property
    def replica_link(self) -> Link:
        """The link between neighbouring replicas of a rank, over all network cards that their rings
        use."""
        return self._reached(self.messages.link(Group.DP, self.setup.run.dense_replicas))

    def _reached(self, link: Link | ClusterLink) -> Link:
        reached = self.cluster.efficiency
        return Link(link.latency + reached.collective_ms, link.gigabytes_per_second * reached.link)

    @cached_property
    def _simulated(self) -> tuple[FloatArray, FloatArray]:
        return self._simulate(self.profile)

    @cached_property
    def _order(self) -> OpOrder:
        return self.planned or self.setup.order_for(self.profile)

    @cached_property
    def schedule(self) -> Schedule:
        """The simulated schedule."""
        like = self._order.schedule
        return timed(replace(like, problem=replace(like.problem, profile=self.profile)))

    def _simulate(self, profile: Profile) -> tuple[FloatArray, FloatArray]:
        """The end of each rank's last op, and its peak memory of activations, (P,) each."""
        order, offsets = self._order.flat
        like = self._order.schedule
        problem, rows = replace(like.problem, profile=profile), like.order
        if like.transfers:
            return _until_home(replace(like, problem=problem))
        choice = choice_of(problem, rows) if pulled(rows) else None
        simulator = Simulator(problem, offsets)
        assert simulator.run(order, choice)
        return simulator.end[offsets[1:] - 1], simulator.peak

    @property
    def activation_bytes(self) -> FloatArray:
        """The peak memory of each rank's activations, (P,)."""
        return self._simulated[1]

    @property
    def makespan(self) -> float:
        """The end of the last op of all ranks, in milliseconds."""
        return float(self._simulated[0].max())

    @cached_property
    def buffers(self) -> tuple[float, ...]:
        """Bytes of each rank's buffers for weights and gradients in transfer, (P,)."""
        made = self.schedule
        if not made.transfers:
            return (0.0,) * self.setup.run.pp
        return footprint(made).passing

    @cached_property
    def shares(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """The stages that each rank runs, and for how many microbatches."""
        run, owners = self.setup.run, self.setup.owners
        if self.passing is Passing.WEIGHTS:
            counts = (len(range(rank, run.microbatches, run.pp)) for rank in range(run.pp))
            return tuple((tuple(range(run.stages)), count) for count in counts)
        stages = (tuple(s for s, o in enumerate(owners) if o == rank) for rank in range(run.pp))
        return tuple((mine, run.microbatches) for mine in stages)

    @property
    def work(self) -> FloatArray:
        """Compute time of each rank, without the schedule's own recomputation, in milliseconds,
        (P,)."""
        times = [stage.t_f + stage.fused for stage in self.profile.stages]
        return np.array([sum(count * times[s] for s in stages) for stages, count in self.shares])

    @property
    def again(self) -> FloatArray:
        """Time of the schedule's own recomputation on each rank, in milliseconds, (P,)."""
        kinds, stages, _ = fields_of(self._order.flat[0])
        times = np.array([stage.t_r or 0.0 for stage in self.profile.stages])
        stages = stages[kinds == OpKind.R]
        owners = np.array(self.setup.owners)[stages]
        return np.bincount(owners, times[stages], self.setup.run.pp).astype(np.float64)

    @cached_property
    def ends(self) -> tuple[StepTail, ...]:
        """The end of the step on each rank."""
        pairs = zip(self.setup.exchanges, self.work.tolist(), strict=True)
        return tuple(each.end(time, self.kernels, self.messages) for each, time in pairs)

    @cached_property
    def averaged(self) -> float:
        """The time until all ops and the exposed averaging have ended, in milliseconds."""
        pairs = zip(self._simulated[0], self.ends, strict=True)
        return float(max(t + end.averaging.exposed for t, end in pairs))

    @property
    def stepping(self) -> float:
        """The time of the optimizer's step, and of the host's fixed overhead per step, in
        milliseconds."""
        return max(end.optimizer for end in self.ends) + self.cluster.efficiency.step_ms

    @cached_property
    def time(self) -> float:
        """The step time, in milliseconds."""
        return self.averaged + self.stepping

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of :attr:`time`, by the cluster's calibration."""
        reached = self.cluster.efficiency
        known = self.setup.shapes <= reached.shapes.keys()
        return reached.spread if known else reached.spread_elsewhere

    def communication(self) -> dict[str, Traffic]:
        """Message times by kind, each for the rank on which it takes longest."""
        ranks = [self._sent(stages, microbatches) for stages, microbatches in self.shares]
        seen = [group for group in Group if any(group in each for each in ranks)]
        found = {str(group): _longest(each[group] for each in ranks) for group in seen}
        dp = _longest(end.averaging for end in self.ends)
        if dp.total:
            found["dp"] = dp
        if self.setup.run.pp > 1:
            found["pp"] = self._sends()
        return found

    def _sent(self, stages: tuple[int, ...], microbatches: int) -> dict[Group, Traffic]:
        """Message times of one rank within its groups, per step."""
        found = defaultdict[Group, Traffic](Traffic)
        for work, count in (each for s in stages for each in self.setup.counted_stages[s]):
            for traffic in self.layers[id(work)].traffic.values():
                for group, sent in traffic.items():
                    found[group] += sent.times(count * microbatches)
        return found

    def _sends(self) -> Traffic:
        """Message times of both directions over the boundary between stages, or of all weights and
        gradients that leave a rank. The exposed part is the increase of the makespan."""
        run, profile = self.setup.run, self.profile
        free = self._simulate(replace(profile, links=None))[0].max()
        exposed = max(0.0, float(self._simulated[0].max() - free))
        if self.passing is Passing.WEIGHTS:
            return Traffic(_most_sent(self.schedule), exposed)
        owners = self.setup.owners
        each = [
            float(profile.link_delays(stage.activation_bytes or 0.0)[a, b])
            for stage, a, b in zip(profile.stages, owners, owners[1:], strict=False)
        ]
        by_rank = np.bincount(owners[:-1], each, run.pp)
        total = 2 * run.microbatches * float(by_rank.max())
        return Traffic(total, exposed)


def _until_home(schedule: Schedule) -> tuple[FloatArray, FloatArray]:
    """The time when each rank has run its ops and received all gradients of its stages, and its
    peak memory of activations, (P,) each."""
    timing = simulate(schedule)
    ends = np.array([row[-1] if len(row) else 0.0 for row in timing.end])
    for transfer, (_, end) in zip(schedule.transfers, timing.transfers, strict=True):
        if transfer.kind is TransferKind.GRADIENT:
            ends[transfer.target] = max(ends[transfer.target], end)
    return ends, np.array(timing.peak_memory)


def _most_sent(schedule: Schedule) -> float:
    """The longest total sending time of a rank, in milliseconds."""
    timing = schedule.known_timing
    sources = [transfer.source for transfer in schedule.transfers]
    return float(np.bincount(sources, np.diff(timing.transfers)[:, 0]).max())


def _recomputed(layer: StageProfile) -> StageProfile:
    if layer.t_r is None or layer.m_r is None:
        return layer
    return replace(layer, t_b=layer.t_b + layer.t_r, m_b=layer.m_r, t_bw=None)


def _longest(traffic: Iterable[Traffic]) -> Traffic:
    return max(traffic, key=lambda each: each.total)
