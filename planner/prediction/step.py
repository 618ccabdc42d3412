"""The predicted step of a run: times of stages from their layers, the simulated schedule, and the
end of the step.

After the last backward, gradients are averaged over replicas and the optimizer steps. The averaging
(and FSDP's gathering and scattering in each microbatch) adds one of two times to the step,
whichever is longer: the share ``exposed`` of its duration, or the excess of its duration over that
of the computation. The optimizer step is limited by memory bandwidth: it moves :data:`STEPPED`
bytes per parameter whose state the rank keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.links import Link, Links, Sharing
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule

from ..clusters.cluster import Cluster
from ..models.work import Group, LayerWork
from .families import splits
from .rates import OPS, LayerTimes, Rates, Traffic
from .setup import Setup

STEPPED = 38.0
"""Bytes that Adam in mixed precision moves per parameter: float32 gradients read for the norm, read
and zeroed (12), master weights and two moments read and written (24), 16-bit weights written
(2)."""


@dataclass(frozen=True)
class PredictedStep:
    """The predicted step of ``setup`` at the given ``rates``, with all times in milliseconds.

    ``planned``: a schedule whose order of ops is used instead of that of the run's family; None to
    use the family's.
    """

    setup: Setup
    rates: Rates
    planned: Schedule | None = None

    @property
    def cluster(self) -> Cluster:
        return self.rates.cluster

    def scheduled(self, family: str) -> PredictedStep:
        """Return the same step with the order of ops and the placement of another family."""
        run = replace(self.setup.run, schedule=family)
        return replace(self, setup=replace(self.setup, run=run))

    def layer(self, work: LayerWork) -> LayerTimes:
        """Return the times of a layer for one microbatch, including the calibrated factor of its
        shape."""
        factors = self.cluster.efficiency.shapes
        factor = factors.get(self.setup.shape(work), 1.0) if factors else 1.0
        return self.rates.layer(work, factor)

    @cached_property
    def layers(self) -> tuple[list[tuple[LayerTimes, int]], ...]:
        """For each stage, its distinct layers as pairs: times of the layer, and the number of such
        layers."""
        known: dict[int, LayerTimes] = {}
        for work in (work for layers in self.setup.stages for work, _ in layers):
            known[id(work)] = known.get(id(work)) or self.layer(work)
        return tuple([(known[id(w)], n) for w, n in layers] for layers in self.setup.stages)

    @cached_property
    def profile(self) -> Profile:
        """The profile of the simulated schedule: one entry per stage, and the links between the
        pipeline ranks of one replica."""
        planned = self.planned
        return self.profile_for(self.setup.splits if planned is None else splits(planned))

    @cached_property
    def safe_profile(self) -> Profile:
        """The profile with M_B >= M_W on every stage, so that its memory is valid for every
        schedule."""
        return self.profile_for(True)

    def profile_for(self, split: bool) -> Profile:
        """Return the profile for a schedule with B and W as separate ops (``split``) or as one op.

        The cost model requires M_W <= M_B, but what waits for W (recomputed inputs and output
        gradients) can exceed M_B. If B and W are separate, M_B is hence raised to M_W; if they are
        one op, nothing waits for W, and M_W is reduced to M_B.
        """
        memory = self.cluster.gpu.memory_gib * 2**30
        return Profile(
            tuple(self._stage(stage, split) for stage in range(self.setup.run.stages)),
            self.setup.run.pp,
            links=self._links(),
            device_memory=(memory,) * self.setup.run.pp,
            name=f"{self.setup.model.name} on {self.cluster.name}",
        )

    def _stage(self, stage: int, split: bool) -> StageProfile:
        works, states = self.setup.stages[stage], self.setup.states[stage]
        f, r, b, w = (sum(n * each.of(op) for each, n in self.layers[stage]) for op in OPS)
        m_b, m_w = (sum(n * getattr(work, key) for work, n in works) for key in ("m_b", "m_w"))
        held = max(m_b, m_w) if split else m_b
        return StageProfile(
            *(f, r + b, w, held, min(held, m_w), works[-1][0].message_bytes),
            weight_bytes=states.weights,
            grad_bytes=states.gradients,
            optimizer_bytes=states.optimizer,
        )

    def _links(self) -> Links | None:
        """Return the links between pipeline ranks: one kind for ranks on the same node, another for
        ranks on different nodes. Returns None if there is a single rank.

        All messages that leave a rank share one port, and so do all messages that reach it: passed
        weights go from their owner to many ranks.
        """
        run, node = self.setup.run, self.cluster.gpus_per_node
        if run.pp == 1:
            return None
        apart = run.tp * run.cp * run.dp
        inside, between = map(self.rates.reached, (self.cluster.inside, self.cluster.between))
        if apart * run.pp <= node:
            return Links(inside, shared=Sharing.PORTS)
        at = [rank * apart // node for rank in range(run.pp)]
        near = ((b, a, inside) for a in range(run.pp) for b in range(a) if at[a] == at[b])
        return Links(between, tuple(near), Sharing.PORTS)

    @property
    def replica_link(self) -> Link:
        """The link between neighbors in the group of ranks that average a rank's gradients. Its
        bandwidth is that of all network cards that the rings of a node use together."""
        run = self.setup.run
        return self.rates.reached(self.rates.link(Group.DP.apart(run), Group.DP.size(run)))

    @cached_property
    def schedule(self) -> Schedule:
        """The simulated schedule: ``planned``, or else the family's, with the times of
        :attr:`profile`."""
        return _simulated(self.planned or self.setup.schedule_for(self.profile), self.profile)

    @property
    def activation_bytes(self) -> tuple[float, ...]:
        """The peak memory of each rank's activations, in bytes, (P,)."""
        return self.schedule.known_timing.peak_memory

    @cached_property
    def ends(self) -> FloatArray:
        """For each rank, (P,), the time at which it has run its ops."""
        return _ends(self.schedule)

    @property
    def makespan(self) -> float:
        """The time at which all ranks have run their ops."""
        return float(self.ends.max())

    def owned(self, rank: int) -> tuple[int, ...]:
        """Return the stages whose weights ``rank`` keeps."""
        return tuple(s for s, owner in enumerate(self.setup.owners) if owner == rank)

    def _of_ranks(self, of_stage: Iterable[float]) -> FloatArray:
        """Return, for each rank, (P,), the sum of ``of_stage`` over the stages and microbatches
        that the rank runs.

        ``of_stage``: one value per stage, for one microbatch.
        """
        values = [*of_stage]
        count, ranks = self.setup.run.microbatches, range(self.setup.run.pp)
        return np.array([count * sum(values[s] for s in self.owned(rank)) for rank in ranks])

    @property
    def work(self) -> FloatArray:
        """Compute time of each rank in a step, (P,)."""
        return self._of_ranks(stage.t_f + stage.fused for stage in self.profile.stages)

    @cached_property
    def averaging(self) -> tuple[Traffic, ...]:
        """For each rank, the time per step in which it exchanges gradients (and weights, with FSDP)
        with its replicas: in total, and the exposed part."""
        stages = [sum(n * self.rates.sending(c) for c, n in own) for own in self.setup.exchanges]
        found, share = [], self.cluster.efficiency.exposed
        for rank, work in enumerate(self.work.tolist()):
            time = sum(stages[s] for s in self.owned(rank))
            found.append(Traffic(time, max(share * time, time - work)))
        return tuple(found)

    @cached_property
    def optimizer(self) -> float:
        """The time of the optimizer step on the rank on which it takes longest."""
        updated = [state.updated for state in self.setup.states]
        ranks = range(self.setup.run.pp)
        return self.rates.moving(
            STEPPED * max(sum(updated[s] for s in self.owned(r)) for r in ranks)
        )

    @property
    def stepping(self) -> float:
        """The time of the optimizer step, plus the host's fixed overhead per step."""
        return self.optimizer + self.cluster.efficiency.step_ms

    @cached_property
    def averaged(self) -> float:
        """The time at which all ranks have run their ops and finished the exposed averaging of
        gradients."""
        return float(max(self.ends + [each.exposed for each in self.averaging]))

    @cached_property
    def time(self) -> float:
        """The step time: until gradients are averaged, plus the optimizer step and the host's
        overhead."""
        return self.averaged + self.stepping

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of measured over predicted step time, by the
        calibration of the cluster's GPU."""
        reached = self.cluster.efficiency
        known = self.setup.shapes <= reached.shapes.keys()
        return reached.spread if known else reached.spread_elsewhere

    @cached_property
    def communication(self) -> dict[str, Traffic]:
        """Time of messages per step by kind (``tp``, ``cp``, ``ep``, ``etp``, ``dp``, ``pp``), each
        for the rank on which it takes longest. Kinds that are not used are left out."""
        ranks = [self._sent(rank) for rank in range(self.setup.run.pp)]
        seen = [group for group in Group if any(group in each for each in ranks)]
        found = {str(g): _longest(each[g] for each in ranks if g in each) for g in seen}
        dp = _longest(self.averaging)
        if dp.total:
            found["dp"] = dp
        if self.setup.run.pp > 1:
            found["pp"] = self._sends()
        return found

    def _sent(self, rank: int) -> dict[Group, Traffic]:
        """Return the times per step of a rank's messages within its tensor, context and expert
        parallel groups."""
        found: dict[Group, Traffic] = {}
        for times, count in (each for s in self.owned(rank) for each in self.layers[s]):
            for group, sent in times.traffic.items():
                found[group] = found.get(group, Traffic()).plus(
                    sent, count * self.setup.run.microbatches
                )
        return found

    def _sends(self) -> Traffic:
        """Return the time per step of messages between pipeline ranks.

        The total is that of the rank on which it is longest: the time of the messages in both
        directions between the rank's stages and the stages that follow them. The exposed part is
        the increase of the makespan in comparison with messages that take no time.
        """
        run, profile = self.setup.run, self.profile
        free = _ends(_simulated(self.schedule, replace(profile, links=None))).max()
        exposed = max(0.0, float(self.makespan - free))
        owners = self.setup.owners
        each = [
            float(profile.link_delays(stage.activation_bytes or 0.0)[a, b])
            for stage, a, b in zip(profile.stages, owners, owners[1:], strict=False)
        ]
        return Traffic(2 * run.microbatches * float(np.bincount(owners[:-1], each).max()), exposed)

    @cached_property
    def parts(self) -> dict[str, float]:
        """The parts of the step time by name; they sum to it.

        ``compute``: time of kernels, averaged over the ranks. ``memory``: recomputation that saves
        memory, on the busiest rank. ``uneven``: compute time of the busiest rank in excess of the
        average. ``tp``, ``cp``, ``ep``, ``etp``: exposed messages of the busiest rank in these
        groups. ``bubble``: idle time of the busiest rank until all ranks have run their ops,
        without ``links``. ``links``: the part of this idle time that messages between stages cause.
        ``dp``: exposed averaging of gradients. ``step``: the
        optimizer step and the host's fixed overhead.
        """
        work, sent = self.work, self.communication
        rank = int(work.argmax())
        groups = (str(group) for group in (Group.TP, Group.CP, Group.EP, Group.ETP))
        inner = {kind: sent[kind].exposed for kind in groups if kind in sent}
        recomputed = [sum(n * t.kernels[OpKind.R] for t, n in own) for own in self.layers]
        memory = float(self._of_ranks(recomputed)[rank])
        busiest = float(work[rank])
        uneven = busiest - float(work.mean())
        bubble = self.makespan - busiest
        links = max(0.0, min(sent["pp"].exposed, bubble)) if "pp" in sent else 0.0
        return {
            "compute": busiest - sum(inner.values()) - memory - uneven,
            "memory": memory,
            "uneven": uneven,
            **inner,
            "bubble": bubble - links,
            "links": links,
            "dp": self.averaged - self.makespan,
            "step": self.stepping,
        }


def _longest(traffic: Iterable[Traffic]) -> Traffic:
    return max(traffic, key=lambda each: each.total)


def _simulated(like: Schedule, profile: Profile) -> Schedule:
    """Return a schedule with the placement and the order of ops of ``like``, and with times that
    are simulated for ``profile``."""
    return timed(replace(like, problem=replace(like.problem, profile=profile)))


def _ends(schedule: Schedule) -> FloatArray:
    """Return, for each rank, (P,), the time at which it has run its ops."""
    return np.array([row[-1] if len(row) else 0.0 for row in schedule.known_timing.end])
