"""Predicted step times and predicted traffic, from the profile of the measured links alone."""

from __future__ import annotations

from pipeloom import Profile, Schedule
from pipeloom.ir import Link, Links, traffic
from pipeloom.ir.cost.traffic import over_wires


def wires(schedule: Schedule) -> list[tuple[float, float]]:
    """Bytes a step over each link of the ring, upwards and downwards: no headers, no
    acknowledgements."""
    profile = schedule.problem.profile
    carried = over_wires(profile, traffic(schedule))
    pairs = [(rank, (rank + 1) % profile.ranks) for rank in range(profile.ranks)]
    return [(carried.get(f"{a} to {b}", 0.0), carried.get(f"{b} to {a}", 0.0)) for a, b in pairs]


def fully_sharded(profile: Profile, microbatches: int) -> float:
    """Milliseconds that a step of torch's ``fully_shard`` takes on Gloo, by a formula.

    On a CPU nothing overlaps: each of a rank's M / P microbatches takes, stage by stage, gather and
    F, then gather, BW and reduce. Gloo gathers round the ring: P - 1 hops of a P-th of the weights
    (n bytes), each as slow as the slowest link. Its reduce-scatter is an all-reduce, of 2 (P - 1)
    such hops.

        M / P x sum over stages of  T_F + T_BW + 4 (P - 1) (latency + n / P / bandwidth)
    """
    ranks = profile.ranks
    assert profile.links is not None
    slowest = _slowest(profile.links)
    hop = [slowest.delay((s.weight_bytes or 0.0) / ranks) for s in profile.stages]
    work = sum(s.t_f + s.t_b + s.t_w for s in profile.stages)
    return microbatches / ranks * (work + 4 * (ranks - 1) * sum(hop))


def _slowest(links: Links) -> Link:
    return min((link for _, _, link in links.pairs), key=lambda link: link.gigabytes_per_second)
