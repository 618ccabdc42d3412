"""What a rank with any number of stages can have run or left to run, by what its memory holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeloom.ir.model.ops import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The stages of one rank: T_F, T_B, T_W, M_B and M_W of each, and the rank's limit."""

    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    limit: float
    microbatches: int

    @property
    def work(self) -> float:
        return self.microbatches * float((self.f + self.b + self.w).sum())

    def forwards(self) -> float:
        """The most time of F's that the rank can run before its first B ends: all hold M_B."""
        return most(self.f, self.m_b, self.limit, self.microbatches)

    def beside_the_last_forward(self) -> float:
        """The most time of B's and W's left when the last F starts, its microbatch's own apart.

        That F is one of the last stage, so its microbatch holds M_B of all stages. Each other pair
        of stage and microbatch holds M_B with B and W to come, or M_W with W alone.
        """
        left = self.limit - float(self.m_b.sum())
        times = np.concatenate([self.b + self.w, self.w])
        return most(times, np.concatenate([self.m_b, self.m_w]), left, self.microbatches - 1)

    def early_weights(self) -> float:
        """The least time of W's that have run when the last B ends: M_W of the others is held."""
        late = most(self.w, self.m_w, self.limit, self.microbatches)
        return max(0.0, self.microbatches * float(self.w.sum()) - late)


def most(times: FloatArray, sizes: FloatArray, room: float, count: int) -> float:
    """No choice of at most ``count`` of each kind, within ``room``, takes more time than this.

    The best of all fractional choices; where all sizes are equal, of those with a whole number in
    all.
    """
    if room < 0:
        return 0.0
    room = whole(sizes, room)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(sizes > 0, times / sizes, np.inf)
    total = 0.0
    for kind in np.argsort(-rate, kind="stable").tolist():
        number = count if sizes[kind] == 0 else min(count, room / sizes[kind])
        room -= number * sizes[kind]
        total += float(number * times[kind])
    return total


def whole(sizes: FloatArray, room: float) -> float:
    """How much of ``room`` things of ``sizes`` can fill: a whole number of them where all are
    equal."""
    if len(set(sizes.tolist())) == 1 and sizes[0] > 0:
        return float(np.floor(room / sizes[0]) * sizes[0])
    return room
