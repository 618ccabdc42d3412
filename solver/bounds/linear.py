"""Bounds where every stage has a rank of its own (:class:`~..core.linear_instance.Chain`).

Stage i's first op is an F, and for its
start S_i: S_i >= S_(i-1) + f_(i-1) + down_(i-1), because that F's microbatch passed stage i-1.
A cost C leaves stage i a span of C (period) or of C - offset_i (makespan: the first op of all is
stage 0's first F, and S_i is at least offset_i later).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeloom.ir.model.ops import FloatArray, IntArray

from ..core.linear_instance import Chain
from .memory_time import ramp, rate, span_that_holds


def head_tail(chain: Chain, lags: FloatArray) -> float:
    """Idle time before a rank's first B and after its last F, chained over the ranks.

    *Head.* Before its first B stage i has run F's alone, say n_i: at least one, and at most
    ``capacity`` as each still holds its M_B. Let x_i be the start of its first B after S_i. Then
    x_i >= n_i f_i, and the rank idles at least x_i - n_i f_i before that B. The first B's
    microbatch came back from stage i+1, whose own first B is no later:
    x_i >= x_(i+1) + f_i + down_i + b_(i+1) + up_i, by S_(i+1) >= S_i + f_i + down_i; on the last
    stage x >= f. So given an allowed idle time, the least x_i follows from the last stage on: the
    least n_i with n_i f_i + allowed >= the bound on x_i gives the least x_i, and a smaller x_i
    never hurts an earlier stage.

    *Tail.* See :func:`tail_idle`. Where n_i < M, the last F starts after the first B, so that both
    idle times are apart and add up; where n_i = M only the larger one counts.

    The least C for which every stage's idle time fits into its span less its work is a bound;
    more C allows more idle time, so bisection finds it. The value returned is one that does not
    fit, hence never above the least that does.
    """
    tail = tail_idle(chain)
    low = float((chain.work + tail + lags).max())
    high = low + float(chain.round_trip.max())
    if _heads(chain, low - chain.work - lags, tail).stuck is None:
        return low
    for _ in range(100):
        middle = (low + high) / 2
        if _heads(chain, middle - chain.work - lags, tail).stuck is None:
            high = middle
        else:
            low = middle
    return low


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The heads of :func:`head_tail` in a schedule of some cost, every array by stage.

    ``counts``: the least n_i, as many as memory holds where none serves. ``earliest``: the bound on
    x_i. ``stuck``: the last stage that no n_i serves, so that no schedule has that cost, or None.
    """

    counts: IntArray
    earliest: FloatArray
    stuck: int | None


def heads(chain: Chain, cost: float, lags: FloatArray) -> Heads:
    """What :func:`head_tail` says of the first B's in a schedule of ``cost``."""
    return _heads(chain, cost - chain.work - lags, tail_idle(chain))


def fewest_forwards(chain: Chain, cost: float, lags: FloatArray) -> IntArray:
    """The fewest F's before the first B on each stage that a schedule of ``cost`` can have.

    By the argument of :func:`head_tail`; as many as memory holds where ``cost`` is below the bound.
    """
    return heads(chain, cost, lags).counts


def _heads(chain: Chain, idle: FloatArray, tail: FloatArray) -> Heads:
    """The heads where no stage idles more than ``idle`` in all, ``tail`` of it after its last F."""
    counts, earliest = chain.capacity.copy(), np.empty(chain.stages)
    every, stuck, first_b = chain.microbatches, None, float(chain.f[-1])
    for i in range(chain.stages - 1, -1, -1):
        if i + 1 < chain.stages:
            first_b += chain.f[i] + chain.down[i] + chain.b[i + 1] + chain.up[i]
        earliest[i] = first_b
        f, most = chain.f[i], int(chain.capacity[i])
        fewest = _fewest(first_b, f, idle[i] - tail[i], min(most, every - 1))
        if fewest is not None:
            counts[i] = fewest
        elif stuck is None and (most < every or every * f + idle[i] < first_b):
            stuck = i
        first_b = max(first_b, counts[i] * f)
    return Heads(counts, earliest, stuck)


def _fewest(earliest: float, f: float, idle: float, most: int) -> int | None:
    """The least n in 1..most with n f + idle >= earliest."""
    if most < 1 or idle < 0 or most * f + idle < earliest:
        return None
    if f + idle >= earliest:
        return 1
    n = max(1, int((earliest - idle) / f) - 1)
    while n * f + idle < earliest:
        n += 1
    return n


def tail_idle(chain: Chain) -> FloatArray:
    """How long each stage idles at least between its last F's start and that microbatch's B.

    Proof: the B starts at least R_i after the F. Between, the rank runs this F and otherwise only
    B's and W's of microbatches that it held when the F started: a of them with B and W to come,
    and b with W alone, where (1 + a) M_B + b M_W is within the limit and 1 + a + b <= M.
    """
    return np.array(
        [max(0.0, chain.round_trip[i] - _tail_work(chain, i)) for i in range(chain.stages)]
    )


def _tail_work(chain: Chain, i: int) -> float:
    pending = np.arange(chain.capacity[i])  # a
    room = chain.limit[i] - (1 + pending) * chain.m_b[i]
    weights = (chain.microbatches - 1 - pending).astype(np.float64)  # b
    if chain.m_w[i] > 0:
        weights = np.minimum(weights, np.maximum(0, np.floor(room / chain.m_w[i])))
    busy = pending * (chain.b[i] + chain.w[i]) + weights * chain.w[i]
    return float(chain.f[i] + busy.max())


def through(chain: Chain, lags: FloatArray) -> float:
    """Every microbatch passes each later stage, one after the other, and comes back.

    Stage k's first F starts at S_k, its last B ends at least E_k later: it has run M F's, M B's
    and every W but those that fit into the memory next to the last B, at most
    1 + (limit - M_B) / M_W of them, and it idled as its head and its tail say (both lie between).
    For i <= k stage i started at least the way down to k earlier; the microbatch of the last B
    comes back to stage i, and there its W follows. So stage i spans at least
    E_k + w_i + the sum over l in i..k-1 of f_l + down_l + up_l + b_l.
    """
    return max(0.0, float(through_spans(chain, lags).max()))


def through_spans(chain: Chain, lags: FloatArray) -> FloatArray:
    """The bound of :func:`through` by (k, i), shape (S, S); -inf where i > k."""
    until = _until_last_b(chain)
    spans = np.full((chain.stages, chain.stages), -np.inf)
    for k in range(chain.stages):
        way = np.append((chain.f + chain.down + chain.up + chain.b)[:k][::-1].cumsum()[::-1], 0.0)
        spans[k, : k + 1] = until[k] + way + chain.w[: k + 1] + lags[: k + 1]
    return spans


def _until_last_b(chain: Chain) -> FloatArray:
    """E_k of :func:`through`, the head here without its chain (x_i >= R_i, n_i <= capacity)."""
    m = chain.microbatches
    with np.errstate(divide="ignore", invalid="ignore"):
        late = np.where(chain.m_w > 0, 1 + np.floor((chain.limit - chain.m_b) / chain.m_w), m)
    early = np.maximum(0, m - late)
    head = np.maximum(0.0, chain.round_trip - chain.capacity * chain.f)
    tail = tail_idle(chain)
    idle = np.where(chain.capacity < m, head + tail, np.maximum(head, tail))
    return np.asarray(m * (chain.f + chain.b) + early * chain.w + idle)


def throughput(chain: Chain, lags: FloatArray) -> float:
    """The memory that microbatches hold, times how long they hold it, must fit into the span.

    Microbatch j holds M_B from its F's start to its B's end, at least R_i + b_i, and M_W for at
    least w_i after that. The rank holds at most L, the lesser of its limit and M M_B; moreover, t
    after its start at most the 1 + t / f_i microbatches that can have started (floor), and t before
    its end at most M_B + rho t, rho the larger of M_B / (b_i + w_i) and M_W / w_i: apart from the
    one whose op is running, what is held needs its B and W, or its W, before the end. Each half of
    a span T holds at most the integral of its own ramp, so M (M_B (R_i + b_i) + M_W w_i) <=
    ramps(T), and the least such T is a bound.
    """
    return float(holding_spans(chain, lags).max())


def holding_spans(chain: Chain, lags: FloatArray) -> FloatArray:
    """The bound of :func:`throughput` by stage, shape (S,)."""
    return np.array([_holding_span(chain, i) for i in range(chain.stages)]) + lags


def _holding_span(chain: Chain, i: int) -> float:
    m_b, m_w, f, b, w = (a[i] for a in (chain.m_b, chain.m_w, chain.f, chain.b, chain.w))
    limit = min(chain.limit[i], chain.microbatches * m_b)
    held = chain.microbatches * (m_b * (chain.round_trip[i] + b) + m_w * w)
    rho = max(rate(m_b, b + w), rate(m_w, w))
    return span_that_holds(
        held,
        limit,
        chain.work[i],
        lambda half: _start_ramp(limit, m_b, f, half) + ramp(limit, m_b, rho, half),
    )


def _start_ramp(limit: float, m_b: float, f: float, time: float) -> float:
    """The integral of min(limit, m_b (1 + floor(t / f))) over t in 0..time."""
    if f == 0 or m_b == 0:
        return limit * time
    most = limit / m_b  # f is spent with 1, then 2, ... held
    steps = int(most if most * f <= time else time / f)
    area = m_b * f * steps * (steps + 1) / 2
    return area + (time - steps * f) * min(limit, m_b * (steps + 1))
