"""Bounds where each rank has several consecutive stages, as the pipelines of islands do.

With one stage a rank :mod:`.bounds` knows more. Here ranks count in the order in which the stages
come to them; F_i, B_i and W_i are the summed times of the stages G_i of rank i, down_i and up_i the
delays between it and the next. As everywhere, B and W are apart and microbatches may overtake.

A rank's first op is an F of its first stage. For its start S_i: S_(i+1) >= S_i + F_i + down_i, as that
F's microbatch passed all of G_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.costs import Costs
from pipeloom.ir.ops import FloatArray
from pipeloom.ir.problem import Objective, Passing, Problem

from .chain import ROUNDING
from .parts import groups


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

    The best of all fractional choices; where all sizes are equal, of those with a whole number in all.
    """
    if room < 0:
        return 0.0
    if len(set(sizes.tolist())) == 1 and sizes[0] > 0:
        room = np.floor(room / sizes[0]) * sizes[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(sizes > 0, times / sizes, np.inf)
    total = 0.0
    for kind in np.argsort(-rate, kind="stable").tolist():
        number = count if sizes[kind] == 0 else min(count, room / sizes[kind])
        room -= number * sizes[kind]
        total += float(number * times[kind])
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """The groups of all ranks, the delays between them, (P - 1,), and what a makespan leaves out."""

    groups: Sequence[Group]
    down: FloatArray
    up: FloatArray
    objective: Objective

    @classmethod
    def of(cls, problem: Problem) -> Grouped | None:
        """None where weights travel, or where a rank's stages are not consecutive."""
        if problem.placement.passing is not Passing.ACTIVATIONS:
            return None
        found = groups(problem)
        if found is None:
            return None
        costs, owners = Costs.of(problem), problem.placement.owners
        rows = []
        for group in found:
            own = list(group)
            f, b, w = costs.durations[:3, own]
            limit = float(costs.limit[owners[own[0]]]) * (1 + ROUNDING)
            rows.append(Group(f, b, w, costs.m_b[own], costs.m_w[own], limit, problem.microbatches))
        first = [group[0] for group in found[1:]]
        down, up = costs.into_f[first, 0], costs.into_b[[s - 1 for s in first], 0]
        return cls(rows, down, up, problem.objective)

    def legs(self) -> tuple[FloatArray, FloatArray]:
        """From rank 0's first start to each rank's, and from each rank's B to the end of rank 0's."""
        f, b = (np.array([float(getattr(g, key).sum()) for g in self.groups]) for key in "fb")
        there = np.append(0.0, np.cumsum(f[:-1] + self.down))
        back = np.append(0.0, np.cumsum(b[:-1] + self.up))
        return there, back

    def lags(self) -> FloatArray:
        """How much less than the cost each rank may span."""
        there, _ = self.legs()
        return there if self.objective is Objective.MAKESPAN else np.zeros(len(there))

    def idle(self) -> FloatArray:
        """How long each rank idles at least between its first F and its last B.

        *Head.* The first B is one of the last stage; its microbatch has passed G_i and all later
        ranks and come back, and meanwhile the rank has run F's alone. *Tail.* So is the last F one
        of the last stage, and until its B, which is as far away but for the F's of G_i before it, the rank has
        nothing but what :meth:`Group.beside_the_last_forward` says. They are apart where not all F's come
        before the first B, as is sure where they do not fit; else only the larger counts.
        """
        (there, back), last = self.legs(), self.groups[-1]
        result = []
        for i, group in enumerate(self.groups):
            # down to the last rank, there and back, and up to this rank's own B's
            turn = (there[-1] - there[i]) + float(last.f.sum() + last.b.sum())
            turn += (back[-1] - back[i]) - float(group.b.sum())
            head = max(0.0, turn - group.forwards())
            before = float(group.f[:-1].sum())
            ready = group.beside_the_last_forward() + float(group.f[-1])
            tail = max(0.0, turn - before - ready)
            apart = group.forwards() < group.microbatches * float(group.f.sum()) * (1 - ROUNDING)
            result.append(head + tail if apart else max(head, tail))
        return np.array(result)


def grouped_head_tail(grouped: Grouped) -> float:
    """Each rank's work and the time that it idles at least (:meth:`Grouped.idle`)."""
    work = np.array([group.work for group in grouped.groups])
    return float((work + grouped.idle() + grouped.lags()).max())


def grouped_through(grouped: Grouped) -> float:
    """Every microbatch passes each later rank, one op after the other, and comes back.

    From its first F to the end of its last B rank k runs all F's and B's and some W's, and idles as
    :meth:`Grouped.idle` says. An earlier rank i starts the way down to k earlier; the microbatch of
    the last B comes back to it, and there the W of its first stage follows.
    """
    there, back = grouped.legs()
    lags, idle = grouped.lags(), grouped.idle()
    best = 0.0
    for k, group in enumerate(grouped.groups):
        until = group.microbatches * float((group.f + group.b).sum()) + group.early_weights()
        for i in range(k + 1):
            way = (there[k] - there[i]) + (back[k] - back[i])
            best = max(best, until + idle[k] + way + float(grouped.groups[i].w[0]) + lags[i])
    return float(best)
