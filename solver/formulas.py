"""The bubble rates that formulas give for families, to set beside those of built schedules.

They are the papers' (of wzb1 and wzb2 what counting their turns gives: 1.5 and 3 times as many as
interleave has, as much shorter), for P equal stages, no delays, P dividing M and M > P.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeloom.ir.problem import Objective
from pipeloom.ir.profile import Profile


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
        """A rank's share of all stages."""
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
    "interleaved-1f1b": Formula(lambda i: _ramp(i) / i.chunks),
    "zb-h1": Formula(lambda i: (i.ranks - 1) * (i.t_f + i.t_b - i.t_w)),
    "zb-h2": Formula(lambda i: (i.ranks - 1) * (i.t_f + i.t_b - 2 * i.t_w), Objective.PERIOD),
    "weipipe-interleave": Formula(_ramp),
    "wzb1": Formula(lambda i: _ramp(i) / 1.5),
    "wzb2": Formula(lambda i: _ramp(i) / 3),
}


def formula_of(family: str) -> Formula | None:
    """The formula of ``family``, whose name may carry a parameter; None where there is none."""
    return FORMULAS.get(family.partition(":")[0])
