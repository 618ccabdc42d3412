"""The bubble rates that formulas give for families, to set beside those of built schedules.

For P equal stages, no delays, P dividing M and M > P. Sources: gpipe, 1f1b (dapple alike), zb-h1,
zb-h2 and zb-v (for T_F = T_B = T_W) Qi et al., 2024; interleaved-1f1b (grouped alike) Narayanan et
al., 2021; looped-bfs Lamy-Poirier, 2023; weipipe-interleave Lin et al., 2025. Of wzb1 and wzb2 (the
same) they follow from when their ops run (:mod:`.weights.ring`): a microbatch of a stage takes 1.5
and 3 turns where interleave takes 1, the ramp P - 1 turns in all three, and at equal T_F, T_B, T_W
every turn is as long as its share of the ops. That is (P-1) / (1.5 M + P-1) and (P-1) / (3 M +
P-1). At unequal times a turn lasts as long as its busiest rank, and both are too low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile


@dataclass(frozen=True, slots=True)
class Instance:
    """P, M, and the mean T_F, T_B, T_W of a whole rank; ``chunks``: stages a rank."""

    ranks: int
    microbatches: int
    t_f: float
    t_b: float
    t_w: float
    chunks: int = 1

    @classmethod
    def of(cls, profile: Profile, microbatches: int) -> Instance:
        sums = (sum(getattr(s, key) for s in profile.stages) for key in ("t_f", "t_b", "t_w"))
        t_f, t_b, t_w = (total / profile.ranks for total in sums)
        chunks = max(1, profile.num_stages // profile.ranks)
        return cls(profile.ranks, microbatches, t_f, t_b, t_w, chunks)

    @property
    def work(self) -> float:
        return self.microbatches * (self.t_f + self.t_b + self.t_w)


@dataclass(frozen=True, slots=True)
class Formula:
    """``idle``: a rank's idle time in the ``objective``."""

    idle: Callable[[Instance], float]
    objective: Objective = Objective.MAKESPAN

    def rate(self, instance: Instance) -> float:
        idle = max(0.0, self.idle(instance))
        total = idle + instance.work
        return idle / total if total > 0 else 0.0


def _ramp(i: Instance) -> float:
    return (i.ranks - 1) * (i.t_f + i.t_b + i.t_w)


# by the name of the family without its parameter; of weipipe-naive and fsdp none is published
FORMULAS: dict[str, Formula] = {
    "gpipe": Formula(_ramp),
    "1f1b": Formula(_ramp),
    "dapple": Formula(_ramp),
    "interleaved-1f1b": Formula(lambda i: _ramp(i) / i.chunks),
    "interleaved-1f1b-grouped": Formula(lambda i: _ramp(i) / i.chunks),
    "looped-bfs": Formula(lambda i: _ramp(i) / i.chunks),
    "zb-h1": Formula(lambda i: (i.ranks - 1) * (i.t_f + i.t_b - i.t_w)),
    "zb-h2": Formula(lambda i: (i.ranks - 1) * (i.t_f + i.t_b - 2 * i.t_w), Objective.PERIOD),
    "zb-v": Formula(lambda _: 0.0, Objective.PERIOD),
    "weipipe-interleave": Formula(_ramp),
    "wzb1": Formula(lambda i: _ramp(i) / 1.5),
    "wzb2": Formula(lambda i: _ramp(i) / 3),
}


def formula_of(family: str) -> Formula | None:
    """The formula of ``family``, whose name may carry a parameter; None where there is none."""
    return FORMULAS.get(family.partition(":")[0])
