"""The crossings bound for small memory: forwards and backwards delay each other.

A microbatch goes down from stage to stage with its F's, and up with its B's. *Down to* a stage from
another is the minimum time between the starts of a microbatch's F's on these stages, *up to* a
stage that between the starts of its B's. If two microbatches meet, the F of one and the B of the
other run one after the other on a stage. So the time between two slots cannot be chosen freely, but
changes in steps of the time that one stage takes for both.

**Two slots.** Renaming, slots and turns are those of :mod:`.activation_slots`; K M_B fit on stage
i. Consider only every d-th microbatch, r, r + d, r + 2 d, ..., where 2 d is K or K + 1, and call
them 0, 1, 2, ... Then F(t + 2) of stage i starts no earlier than the turn of q = 2 d - K after the
start of B(t).

**Crossings.** If F(s, t+1) runs before B(s, t) for some s > i, it does so on stage s - 1, too:
F(s-1, t+1) ends before F(s, t+1) starts, and B(s-1, t) starts after B(s, t) ends. So there is a
last stage c, i - 1 <= c < S, such that F(t + 1) comes first on stages i to c, and B(t) on all later
ones. Let P be a lower bound on the start of F(i, t+1) and Q one on the start of B(S-1, t), both
relative to the start of F(i, 0). The dependencies and the order on stages c and c + 1 give two
bounds:

- B(c, t) starts no earlier than Q plus the time up from S - 1 to c, and no earlier than P plus the
  time down to c and f_c (if c >= i);
- F(c+1, t+1) starts no earlier than P plus the time down to c + 1, and no earlier than Q plus the
  time up to c + 1 and b_(c+1) (if c < S - 1).

If c = i - 1, F(i, t+1) starts no earlier than the end of B(i, t). From these bounds, the time up to
stage i and the turn bound F(i, t+2), and the time down to stage S - 1 bounds B(S-1, t+1): these are
the next P and Q. The F's of one stage are also at least d f apart, and its B's d b, as d - 1
microbatches lie between.

**Search.** The c of a schedule is not known, so all are tried, step by step. A pair (P, Q) is
dropped if another pair is no larger in both numbers. Two pairs may be replaced by one with the
minimum of each number. At every step, P or Q plus the work that must follow
(:mod:`.activation_slots`) bounds the span for at least one of the pairs, so the minimum over all
pairs is a lower bound.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.units import duration

from ...core.bound import Bound, starts_later
from ...core.linear_instance import LinearInstance
from .activation_slots import computes, done_before, rest_after, turn, turnover_time, ways_up

MOST_PAIRS = 256  # pairs kept at most


def crossings(linear: LinearInstance, lags: FloatArray) -> Bound:
    """The crossings bound for the stage with the longest turnover time; the module has the proof.

    The value is 0 if memory holds all microbatches of that stage, or fewer than two. ``lags``: for
    each stage, the minimum of the cost minus the span of the stage, shape (S,).
    """
    i = slowest_stage(linear)
    capacity = int(linear.capacity[i])
    words = (
        "memory holds few microbatches, and those on their way down wait for those on their way up"
    )
    if not 2 <= capacity < linear.microbatches:
        return Bound(0.0, "crossings", words)
    d = (capacity + 1) // 2
    wait = turn(linear, i, 2 * d - capacity) - float(linear.b[i])  # from the end of B(t) to F(t+2)
    ladder = _Ladder(linear, i, d, wait)
    span, lag = ladder.span(), float(lags[i])

    def numbers() -> list[str]:
        return [
            f"{computes(linear, i, span)}, and are gone for at least "
            f"{duration(linear.round_trip[i] + linear.b[i])} each, there and back",
            "on the way those that go down meet those that come up, and on each stage one waits "
            "for the other",
            *starts_later(lag),
        ]

    return Bound(span + lag, "crossings", words, int(linear.ranks[i]), numbers)


def slowest_stage(linear: LinearInstance) -> int:
    """The stage with the longest turnover time among those that cannot hold all microbatches.

    The turnover time (:func:`.activation_slots.turnover_time`) is the minimum time per microbatch
    once memory is full. Returns 0 if every stage can hold all microbatches.
    """
    return int(
        np.where(linear.capacity < linear.microbatches, turnover_time(linear), -np.inf).argmax()
    )


class _Ladder:
    """A search for the crossings bound, step by step over every ``d``-th microbatch.

    Step t has pairs (P, Q): P is a lower bound on the start of F of microbatch t + 1 on stage
    ``i``, Q one on the start of B of microbatch t on the last stage. ``i``: the stage whose span is
    bounded; the search numbers it 0 and the following stages 1, 2, ... ``wait``: the minimum time
    from the end of B of microbatch t to the start of F of microbatch t + 2, both on stage ``i``.
    """

    def __init__(self, linear: LinearInstance, i: int, d: int, wait: float) -> None:
        self.m, self.d = linear.microbatches, d
        self.f, self.b = float(linear.f[i]), float(linear.b[i])
        self.f_last, self.b_last = float(linear.f[-1]), float(linear.b[-1])
        up = ways_up(linear)[i:]  # time from B on the last stage to B on each
        self.down = linear.offset[i:] - linear.offset[i]  # time from F on i to F on each
        self.f_here, self.b_here, self.up = linear.f[i:], linear.b[i:], up
        self.done = done_before(linear)[0][i]
        self.left_f, self.left_b = rest_after(linear, i)
        self.wait = wait

    def span(self) -> float:
        """The lower bound on the span of stage ``i``."""
        p = np.array([self.d * self.f])
        q = np.array([self.down[-1] + self.f_last])
        spans = [0.0]
        for t in range(-(-self.m // self.d)):
            spans.append(self._spans(t, p, q))
            p, q = _undominated_pairs(*self._step(p[:, None], q[:, None]))
        return max(spans)

    def _spans(self, t: int, p: FloatArray, q: FloatArray) -> float:
        """The highest lower bound on the span of stage i that the pairs (p, q) of step ``t`` give.

        The microbatches that the search considers may be r, r + d, r + 2 d, ... for any r < d; the
        result is the highest bound for any r.
        """
        best = 0.0
        for r in range(self.d):
            now, following = r + t * self.d, r + (t + 1) * self.d
            if now >= self.m:
                break
            spans = q + self.up[0] + self.left_b[now]
            if following < self.m:
                spans = np.maximum(spans, p + self.left_f[following])
            best = max(best, float(self.done[r] + spans.min()))
        return best

    def _step(self, p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The pairs of the next step, for each pair (p, q) and each last stage c of a crossing.

        On the stages up to c, F of microbatch t + 1 runs before B of microbatch t; on the later
        stages it runs after that B. If c is -1, it does so on all stages. ``p`` and ``q`` have
        shape (pairs, 1); the two results, the new p and q, have shape (pairs, stages + 1).
        """
        b_first = np.maximum(p, q + self.up[0] + self.b)  # F(i, t+1) if c = i - 1
        start = np.hstack([b_first, np.repeat(p, len(self.up), axis=1)])
        back = np.maximum(q + self.up, p + self.down + self.f_here)  # B(c, t)
        home = back + (self.up[0] - self.up) + self.b
        home = np.hstack([q + self.up[0] + self.b, home])  # end of B(i, t)
        next_p = np.maximum(home + self.wait, start + self.d * self.f)
        # F(c+1, t+1), then on to the last stage; if c is the last stage, no B comes first
        meets = np.maximum(p + self.down, q + self.up + self.b_here)
        turn = np.hstack([meets + (self.down[-1] - self.down), p + self.down[-1]]) + self.f_last
        last_b = np.hstack([np.repeat(q, len(self.up), axis=1), back[:, -1:]])
        return next_p, np.maximum(turn, last_b + self.d * self.b_last)


def _undominated_pairs(p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Drop each pair (p, q) for which another pair is no larger in both numbers.

    Returns p and q of the remaining pairs. If these are more than MOST_PAIRS, neighboring pairs are
    merged.
    """
    order = np.lexsort((q.ravel(), p.ravel()))
    p, q = p.ravel()[order], q.ravel()[order]
    keep = np.append(True, q[1:] < np.minimum.accumulate(q)[:-1])
    p, q = p[keep], q[keep]
    if len(p) <= MOST_PAIRS:
        return p, q
    first = np.arange(0, len(p), -(-len(p) // MOST_PAIRS))
    return np.minimum.reduceat(p, first), np.minimum.reduceat(q, first)
