"""A lower bound if activations may be recomputed or offloaded: remat before the first B.

Notation as in :mod:`.several_stages.general_placement`: rank r begins at S_r, its span is at most
the cost, and turn(s, t) is the minimum time from the start of F(s) to the start of B(t) of a
microbatch. R's are work: they add to the busy time of a rank. Each microbatch stays, is recomputed
in t_r with m_r kept, or is offloaded with m_o kept, by copies of t_o in each direction. The bound
is the minimum over all combinations of these choices.

It is the optimum of a small linear program, bounded from below by LP duality: any prices >= 0 of
memory and of the copy channels give a valid bound. It suffices to try the prices at which two
choices of some stage cost the same. With one stage per rank, the MILP of :mod:`.milp_relaxation` is
stronger, as it counts whole microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.bound import Bound
from .several_stages.general_placement import GeneralPlacement, HostModel


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    """A rank with K stages, and the times and sizes of remat; arrays have shape (K,).

    ``t_r``: time of an R; ``m_r``: memory that a microbatch holds until its R. ``t_o``: time of a
    copy to the host or back; ``m_o``: memory that a microbatch holds between the two copies.
    ``t_r`` is infinite for stages that cannot be recomputed, ``t_o`` for stages that cannot be
    offloaded. ``turn``: the minimum time from the start of the rank's first F to the start of its
    first B.
    """

    host: HostModel
    turn: float
    t_r: FloatArray
    m_r: FloatArray
    t_o: FloatArray
    m_o: FloatArray


def recomputed_or_idle(problem: Problem) -> Bound:
    """The bound "remat-head": before its first B a rank idles, or frees memory for more F's.

    It frees memory by copies, or by dropping activations that it recomputes later; both take time.
    Let the first B of rank r start at time x after S_r, so x >= turn(l_r, h_r), l_r and h_r being
    the lowest and highest stage of the rank. Assign each pair of stage and microbatch whose F has
    run by then to a set: *a* if M_B is held, *r* if its R is still to come and m_r is held, *o* if
    it is offloaded and m_o is held. All that is held fits into the limit. The channel to the host
    has carried the pairs in o after the first F ended, so the sum of their t_o is at most x - min
    T_F. By then the rank has run these F's and possibly some R's, so it has idled for x - sum T_F
    minus the time of these R's. The rank also has to run its work and the R's of all pairs in r. So
    its span is at least

        work + x - sum over a, o of T_F - sum over r of (T_F - t_r).

    By duality, for prices p of memory and q <= 1 of the channel, the two sums are at most p limit +
    q (x - min T_F) plus, for each pair, the maximum of 0, T_F - p M_B, T_F - t_r - p m_r and T_F -
    p m_o - q t_o. The resulting bound grows with x, so the minimum of x is used.
    """
    words = (
        "before its first B a rank idles, or makes room for F's by recomputing later or by copies, "
        "which take their time"
    )
    placed, costs, found = GeneralPlacement.of(problem), Costs.of(problem), []
    for host in placed.hosts:
        own, turn = list(host.stages), placed.turn(host.lowest, host.highest)
        t_r, t_o = costs.durations[OpKind.R, own], costs.durations[OpKind.O, own]
        m_r, m_o = costs.kept[RECOMPUTED, own], costs.kept[OFFLOADED, own]
        span = _head_span(_Rank(host, turn, t_r, m_r, t_o, m_o))
        found.append((span + placed.lag(host), host.rank))
    value, at = max(found)
    return Bound(value, "remat-head", words, at)


def _head_span(rank: _Rank) -> float:
    host, x, f = rank.host, rank.turn, rank.host.f
    if not np.isfinite(host.limit):
        return host.work
    with np.errstate(divide="ignore", invalid="ignore"):
        memory = np.concatenate([f / host.m_b, f / rank.m_o, (f - rank.t_r) / rank.m_r])
        memory = np.concatenate([memory, rank.t_r / (host.m_b - rank.m_r)])
        copies = np.concatenate([f / rank.t_o, rank.t_r / rank.t_o])
    channel_time = x - float(f.min())
    gains = []
    for p, q in product(_prices(memory), _prices(copies, 1.0)):
        ways = [
            np.zeros_like(f),
            f - p * host.m_b,
            f - rank.t_r - p * rank.m_r,
            f - p * rank.m_o - _times(q, rank.t_o),
        ]
        best = host.count * float(np.max(ways, axis=0).sum())
        gains.append(p * host.limit + q * channel_time + best)
    return host.work + max(0.0, x - min(gains))


def _prices(of: FloatArray, most: float = np.inf) -> list[float]:
    """The prices to try, in ascending order: 0, and the positive finite entries of ``of``.

    Each price occurs once. Entries above ``most`` are replaced by ``most``.
    """
    good = of[np.isfinite(of) & (of > 0)]
    return sorted({0.0, *np.minimum(good, most).tolist()})


def _times(price: float, amounts: FloatArray) -> FloatArray:
    """Return ``price * amounts``, but inf for each amount that is inf, even if the price is 0."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(amounts), price * amounts, np.inf)
