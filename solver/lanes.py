"""The crossings bound with more slots: several microbatches meet each one on its way up.

**Lanes.** As in :mod:`.crossings`, take every d-th microbatch alone, with n d >= K: then F(t + n) of
stage i waits for the end of B(t). On its way up, t meets t + 1, t + 2, ..., t + n - 1 on their way
down: let c_j be the last stage on which F(t + j) runs before B(t), i - 1 where there is none. Then

    c_1 >= c_2 >= ..., as F(s, t+j) ends before F(s, t+j+1) starts;
    c_j >= the c_(j+1) of t - 1, as B(s, t-1) ends before B(s, t) starts.

Write y for a bound on the start of B(s, t) less the way up from stage S - 1 to s, and v_j for one on
the start of F(s, t+j) less the way down from i to s. Each bound holds from some stage on: y on the
stages above c_1 from the start, v_j on those below the last meeting of t + j. By the dependencies
and the order on stages c_j and c_j + 1, meeting t + j makes

    v_j  the larger of itself and y + up to c_j + 1 + b - down to there, on stages after c_j;
    y    the larger of itself and v_j + down to c_j + f - up to there, on stages up to c_j,

the first with the y that holds on c_j + 1 (before any meeting on c_j), the second only where v_j holds
on c_j (c_j > the last meeting of t + j). After all meetings y bounds the end of B(i, t), hence with
the slot F(i, t+n), and v_1 the start of B(S-1, t+1).

**Search.** All choices of c_1, ..., c_(n-1) are tried, step by step. Of the states with the same last
meetings, only those are kept that are not above another one in every number; several that are
close may be replaced by the least of each number. A state whose cost to the end is no less than ``ceiling``,
the cost of some schedule, is dropped: the least over all that are left, or the ceiling, is a bound.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numba
import numpy as np
import numpy.typing as npt

from pipeloom.ir.ops import FloatArray, IntArray

from .allowance import Allowance
from .chain import Chain
from .crossings import slowest_stage
from .slots import done_before, left_after, slot_wait, ways_up

LANES = (3, 4)
CHOICES = 200
"""Up to how many choices of meeting stages a number of lanes is tried."""
STATES = 600
"""How many states are kept at most."""
TINY = 1e-200
"""Costs below this are not searched: a cell of them would be no number any more."""
PIECE = 200_000
"""How many followers are looked at together."""
FOLLOWER = 5
"""What each counts, in simulated ops, for each lane."""


def lanes(
    chain: Chain, lags: FloatArray, ceiling: float, allowance: Allowance | None = None
) -> float:
    """The best bound over numbers of lanes; ``ceiling`` is the cost of a schedule."""
    allowance = allowance or Allowance()
    i = slowest_stage(chain)
    if chain.capacity[i] >= chain.microbatches:
        return 0.0
    best = 0.0
    for count in LANES:
        if count > chain.capacity[i] or ceiling - lags[i] < TINY:
            break
        choices = list(combinations_with_replacement(range(chain.stages - i, -1, -1), count - 1))
        if len(choices) > CHOICES:
            break
        lag = float(lags[i])
        search = _Search(chain, i, np.array(choices) - 1, ceiling - lag)
        best = max(best, search.span(allowance) + lag)
        if best >= ceiling:
            break
    return min(best, ceiling)


class _Search:
    """Every d-th microbatch on stages ``i`` to the last; stages count from ``i`` here."""

    def __init__(self, chain: Chain, i: int, choices: IntArray, ceiling: float) -> None:
        self.choices, self.ceiling = choices, ceiling  # (choices, n - 1)
        self.n = choices.shape[1] + 1
        self.m, capacity = chain.microbatches, int(chain.capacity[i])
        self.d = -(-capacity // self.n)
        self.f, self.b = chain.f[i:], chain.b[i:]
        self.up, self.down = ways_up(chain)[i:], chain.offset[i:] - chain.offset[i]
        wait = float(slot_wait(chain)[i])
        self.home = float(self.up[0] + self.b[0] + wait + self.f[0] * (self.n * self.d - capacity))
        self.r = (self.m - 1) % self.d
        self.done = float(done_before(chain)[0][i, self.r])
        self.cell = 1e-6 * ceiling
        self.rest_f, self.rest_b = _rest(chain, i, float(chain.b[i]) + wait)

    def span(self, allowance: Allowance) -> float:
        """What stage i spans at least, or the ceiling."""
        gap = self.d * self.f[0]
        met = np.full((1, self.n - 2), -1)  # of t + 1, ..., t + n - 2: their last meeting
        # the start of B(S-1, t), then v_1, ..., v_(n-1)
        times = np.append(self.down[-1] + self.f[-1], gap * np.arange(1, self.n))[None]
        best = 0.0
        for t in range((self.m - 1) // self.d + 1):
            spans = self._spans(t, times)
            keep = spans < self.ceiling
            if not keep.any():
                return self.ceiling
            best = max(best, float(spans.min()))
            allowance.spend(FOLLOWER * len(met) * len(self.choices) * self.n)
            if allowance.spent:
                break
            met, times = self._thin(*self._followers(met[keep], times[keep], t + 1))
            if len(met) == 0:
                return self.ceiling
        return best

    def _spans(self, t: int, times: FloatArray) -> FloatArray:
        """What stage i spans at least from each state, before t meets any."""
        now, last = self.r + t * self.d, self.r + (t + self.n - 1) * self.d
        spans = np.zeros(len(times))
        if now < self.m:
            spans = times[:, 0] + self.up[0] + self.rest_b[now]
        if last < self.m:
            spans = np.maximum(spans, times[:, -1] + self.rest_f[last])
        return np.asarray(self.done + spans)

    def _followers(self, met: IntArray, times: FloatArray, t: int) -> tuple[IntArray, FloatArray]:
        """The states after every choice, less those that reach the ceiling."""
        rows = max(1, PIECE // len(self.choices))
        found = []
        for first in range(0, len(met), rows):
            piece = slice(first, first + rows)
            next_met, next_times = self._meet(met[piece], times[piece])
            keep = self._spans(t, next_times) < self.ceiling
            found.append(self._thin(next_met[keep], next_times[keep]))
        return np.concatenate([m for m, _ in found]), np.concatenate([x for _, x in found])

    def _thin(self, met: IntArray, times: FloatArray) -> tuple[IntArray, FloatArray]:
        """The states not above another; with larger and larger cells merged until few are left."""
        self.cell = max(self.cell / 8, 1e-7 * self.ceiling)
        while len(met) > 0:
            met, times = _merged(met, times, self.cell)
            order = np.argsort(times.sum(axis=1), kind="stable")
            met, times = met[order], times[order]
            keep = _undominated(met, times)
            met, times = met[keep], times[keep]
            if len(met) <= STATES or self.cell > self.ceiling:  # one a last meeting is left
                break
            self.cell *= 2
        return met, times

    def _meet(self, met: IntArray, times: FloatArray) -> tuple[IntArray, FloatArray]:
        """The states after every choice that goes with the last meetings."""
        last = np.hstack([met, np.full((len(met), 1), -1)])  # t + n - 1 has met none
        allowed = (self.choices[None] >= last[:, None]).all(axis=2)
        state, choice = np.nonzero(allowed)
        c, last, before = self.choices[choice], last[state], times[state]
        after = np.empty_like(before)
        top = len(self.f) - 1
        y = above = before[:, 0]
        previous = np.full(len(c), top)
        for j in range(self.n - 1):
            at, v = c[:, j], before[:, j + 1]
            above = np.where(at < previous, y, above)
            below = np.minimum(at + 1, top)
            came = above + self.up[below] + self.b[below] - self.down[below]
            later = np.where(at < top, np.maximum(v, came), v)
            here = np.maximum(at, 0)
            went = v + self.down[here] + self.f[here] - self.up[here]
            y = np.where(at > last[:, j], np.maximum(y, went), y)
            if j == 0:
                turned = np.where(at == top, y, before[:, 0]) + self.d * self.b[-1]
                after[:, 0] = np.maximum(turned, later + self.down[-1] + self.f[-1])
            else:
                after[:, j] = later
            previous = at
        after[:, -1] = np.maximum(y + self.home, later + self.d * self.f[0])
        return c[:, 1:], after


def _rest(chain: Chain, i: int, leaves: float) -> tuple[FloatArray, FloatArray]:
    """From the start of F(i, k), of B(i, k), to the last end on stage i, slot by slot."""
    f, b = (left[i].copy() for left in left_after(chain))
    capacity = int(chain.capacity[i])
    for k in range(chain.microbatches - 1, -1, -1):
        if k + capacity < chain.microbatches:
            b[k] = max(b[k], leaves + f[k + capacity])
        f[k] = max(f[k], chain.round_trip[i] + b[k])
    return f, b


def _merged(met: IntArray, times: FloatArray, cell: float) -> tuple[IntArray, FloatArray]:
    """The states of one cell of ``times`` as one, the least of each number."""
    key = np.hstack([met, np.floor(times / cell).astype(np.int64)])
    _, first, group = np.unique(key, axis=0, return_index=True, return_inverse=True)
    least = np.full((len(first), times.shape[1]), np.inf)
    np.minimum.at(least, group.ravel(), times)
    return met[first], least


@numba.njit(cache=True, nogil=True)
def _undominated(met: IntArray, times: FloatArray) -> npt.NDArray[np.bool_]:
    """Which states, sorted by the sum of their times, are above no earlier one."""
    keep = np.ones(len(met), dtype=np.bool_)
    for i in range(len(met)):
        for j in range(i):
            if keep[j]:
                above = True
                for k in range(met.shape[1]):
                    above = above and met[i, k] == met[j, k]
                for k in range(times.shape[1]):
                    above = above and times[i, k] >= times[j, k]
                if above:
                    keep[i] = False
                    break
    return keep
