"""A bound for memory that holds few microbatches: each takes the place of an earlier one.

**Names.** Call the k-th F (B, W) of a stage to run F(i, k) (B(i, k), W(i, k)), whatever its
microbatch. Times stay, and so do all dependencies: when F(i, k) starts, k + 1 microbatches have
passed stage i - 1, so F(i-1, k) ended at least a delay ago; likewise for B, and B(i, k) after
F(i, k), W(i, k) after B(i, k). The memory held depends on the counts alone. So a bound for
schedules in which every stage runs its F's, B's and W's in the order of their names holds for all.

**Slots.** K_i M_B fit on stage i. When F(i, k + K_i) starts, its own M_B and those of the others
between F and B fit, so B(i, k) has ended: microbatch k has left its slot. Say that B(i, k + e) has
ended then and no later one. K_i - 1 - e others hold M_B, so at most q(e) W's wait, q(e) being the
most M_W that fit next to K_i - e times M_B; at the end of B(i, k) at least one waited, W(i, k).
From then on e B's and at least 1 + e - q(e) W's have run, one after the other: the slot is free
for F(i, k + K_i) no earlier than the least of these, over e, after the end of B(i, k).

**Turns.** More follows from the same count. When F(i, k + K_i + q) starts, B(i, k) to B(i, k + q)
have ended, and e more, say; of all W's of ended B's at most q(e) wait. Since the start of B(i, k)
there ran these q + 1 + e B's, the F's from k + K_i on, which B(i, k) made room for, and at least q
+ 1 + e - q(e) W's, as W(i, k) and later ones only can have run since. So F(i, k + K_i + q) starts
no earlier than

    (q + 1) b + q f + the least, over e, of e b + max(0, q + 1 + e - q(e)) w

after the start of B(i, k): slots that are all taken are freed at the pace of a whole microbatch.

**Paths.** These waits, the dependencies and the order on each stage are the arcs of a graph
without cycles. The longest path from F(i, 0) to a moment of stage i, and the work that stage i has
left after it, bound its span. Left are at least

    from the start of F(i, k):  M - k of each kind, as no later one has run;
    from the start of B(i, k):  M - k B's and W's, and the F's from k + K_i on.

And from the start of F(i, 0) to the start of another op of stage i there run at least

    before F(i, k):  k F's, and the B's and W's without which F(i, k) does not fit;
    before B(i, k):  k + 1 F's, k B's, and k - q W's, q being the most M_W that fit next to one M_B.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.units import duration

from ...core.bound import Bound, starts_later
from ...core.linear_instance import LinearInstance
from ...core.tolerances import counts_within

NEAR = 8  # microbatches after a slot is free whose W's are counted one by one; then by pace


def slots(linear: LinearInstance, lags: FloatArray) -> Bound:
    """The longest of the paths above; see there for the proof."""
    words = "memory holds few microbatches, and each waits for an earlier one to come back"
    if linear.capacity.min() >= linear.microbatches:  # no microbatch waits for another's slot
        return Bound(0.0, "slots", words)
    spans = _spans(linear)
    i = int((spans + lags).argmax())

    def numbers() -> list[str]:
        return [
            f"{computes(linear, i, float(spans[i]))}, and each is held for at least "
            f"{duration(linear.round_trip[i] + linear.b[i])}, there and back",
            "a further one starts only where an earlier one has left its place, here and on every "
            "later rank; this is the longest chain of such waits",
            *starts_later(float(lags[i])),
        ]

    return Bound(float((spans + lags).max()), "slots", words, int(linear.ranks[i]), numbers)


def computes(linear: LinearInstance, i: int, span: float) -> str:
    """A line on a stage whose rank spans so much, as memory is short."""
    return (
        f"rank {linear.ranks[i]} spans at least {duration(span)}, of which it computes for "
        f"{duration(linear.work[i])}: {linear.capacity[i]} of {linear.microbatches} microbatches "
        "fit in its memory"
    )


def _spans(linear: LinearInstance) -> FloatArray:
    """The least span of each stage, shape (S,)."""
    c, scratch = linear, np.empty((2, linear.microbatches, linear.stages))
    fixed = c.f, c.b, c.down, c.up, c.capacity, *slot_turns(c)
    by_stage = zip(*done_before(c), *left_after(c), strict=True)
    return np.array([_longest_path(i, *fixed, *rows, *scratch) for i, rows in enumerate(by_stage)])


@kernel
def _longest_path(  # noqa: PLR0917
    source: int,
    f: FloatArray,
    b: FloatArray,
    down: FloatArray,
    up: FloatArray,
    capacity: IntArray,
    near: FloatArray,  # (S, Q), and
    pace: FloatArray,  # (S,): those of slot_turns
    done_f: FloatArray,  # (M,) of the source, as the next three
    done_b: FloatArray,
    left_f: FloatArray,
    left_b: FloatArray,
    forward: FloatArray,  # (M, S) scratch: the start of F(s, k), of B(s, k), after F(source, 0)'s
    backward: FloatArray,
) -> float:
    microbatches, stages = forward.shape
    far, room = near.shape[1] - 1, np.full(stages, -np.inf)
    span = 0.0
    for k in range(microbatches):
        for s in range(stages):
            start = done_f[k] if s == source else -np.inf
            if k > 0:
                start = max(start, forward[k - 1, s] + f[s])
            freed = k - capacity[s]
            for q in range(min(freed, far) + 1):
                start = max(start, backward[freed - q, s] + near[s, q])
            if freed >= far:
                room[s] = max(room[s] + pace[s], backward[freed - far, s] + near[s, far])
                start = max(start, room[s])
            if s > 0:
                start = max(start, forward[k, s - 1] + f[s - 1] + down[s - 1])
            forward[k, s] = start
        for s in range(stages - 1, -1, -1):
            start = done_b[k] if s == source else -np.inf
            if k > 0:
                start = max(start, backward[k - 1, s] + b[s])
            if s == stages - 1:
                start = max(start, forward[k, s] + f[s])
            else:
                start = max(start, backward[k, s + 1] + b[s + 1] + up[s])
            backward[k, s] = start
        span = max(span, forward[k, source] + left_f[k], backward[k, source] + left_b[k])
    return span


def ways_up(linear: LinearInstance) -> FloatArray:
    """The time from the start of a B on the last stage to the same microbatch's on each, (S,)."""
    ways = linear.b[1:] + linear.up[:-1]
    return np.append(np.cumsum(ways[::-1])[::-1], 0.0)


def slot_turns(linear: LinearInstance) -> tuple[FloatArray, FloatArray]:
    """:func:`turn` for q < NEAR, shape (S, NEAR), and its growth with each further q, (S,)."""
    stages, last = range(linear.stages), NEAR - 1
    near = np.array([[turn(linear, i, q) for q in range(NEAR)] for i in stages])
    pace = linear.f + linear.b
    for i in stages:
        held = np.arange(linear.capacity[i], 0, -1)
        more = np.arange(linear.capacity[i])  # e
        if (last + 1 + more >= most_waiting(linear, i, held)).all():  # no W waits without need
            pace[i] += linear.w[i]
    return near, pace


def turn(linear: LinearInstance, i: int, q: int) -> float:
    """The least time from the start of B(i, k) to that of F(i, k + K_i + q)."""
    return float((q + 1) * linear.b[i] + q * linear.f[i] + _besides(linear, i, q))


def slot_wait(linear: LinearInstance) -> FloatArray:
    """The least time from the end of B(i, k) to the start of F(i, k + K_i), shape (S,)."""
    return np.array([_besides(linear, i, 0) for i in range(linear.stages)])


def _besides(linear: LinearInstance, i: int, q: int) -> float:
    """The least part of a turn besides its q + 1 B's and q F's: e further B's, and W's."""
    more = np.arange(linear.capacity[i])  # e
    waiting = most_waiting(linear, i, linear.capacity[i] - more)
    weights = np.maximum(0, q + 1 + more - waiting)
    return float((more * linear.b[i] + weights * linear.w[i]).min())


def turnover_time(linear: LinearInstance) -> FloatArray:
    """The least time that each stage takes a microbatch once its slots are full, shape (S,)."""
    return (linear.round_trip + linear.b + slot_wait(linear)) / linear.capacity


def slots_limit_rate(linear: LinearInstance, share: float = 1.0) -> bool:
    """Whether some stage's slots turn over more slowly than in ``share`` of its work."""
    slow = turnover_time(linear) > share * (linear.f + linear.b + linear.w)
    return bool((slow & (linear.capacity < linear.microbatches)).any())


def most_waiting(linear: LinearInstance, i: int, held: IntArray) -> FloatArray:
    """The most W's that wait where ``held`` M_B are held; more than M where there is no limit."""
    room = linear.limit[i] - held * linear.m_b[i]
    return counts_within(room, linear.m_w[i], 2.0 * linear.microbatches)


def done_before(linear: LinearInstance) -> tuple[FloatArray, FloatArray]:
    """The least times from the start of F(i, 0) to F(i, k) and B(i, k), shape (S, M) each."""
    k = np.arange(linear.microbatches)
    f, b = np.empty((2, linear.stages, linear.microbatches))
    for i in range(linear.stages):
        waiting = most_waiting(linear, i, np.arange(linear.capacity[i] + 1))
        f[i] = k * linear.f[i] + _least_before(
            linear.microbatches, linear.b[i], linear.w[i], waiting
        )
        late = np.maximum(0, k - most_waiting(linear, i, np.array(1)))
        b[i] = np.maximum((k + 1) * linear.f[i], linear.round_trip[i]) + k * linear.b[i]
        b[i] = np.maximum(b[i], (k + 1) * linear.f[i] + k * linear.b[i] + late * linear.w[i])
    return f, b


@kernel
def _least_before(microbatches: int, b: float, w: float, waiting: FloatArray) -> FloatArray:
    """The least time that B's and W's take before F(i, k), shape (M,).

    ``waiting``: the most W's that wait where so many M_B are held, F(i, k)'s own included.
    """
    least = np.full(microbatches, np.inf)
    for k in range(microbatches):
        for held in range(1, min(len(waiting) - 1, k + 1) + 1):
            gone = k + 1 - held  # B's before F(i, k)
            least[k] = min(least[k], gone * b + max(0.0, gone - waiting[held]) * w)
    return least


def left_after(linear: LinearInstance) -> tuple[FloatArray, FloatArray]:
    """The least times from F(i, k) and from B(i, k) to the last end on stage i, (S, M) each."""
    left = linear.microbatches - np.arange(linear.microbatches)
    f, b, w = (time[:, None] for time in (linear.f, linear.b, linear.w))
    later = np.maximum(0, left - linear.capacity[:, None])
    return left * (f + b + w), left * (b + w) + later * f


def rest_after(linear: LinearInstance, i: int) -> tuple[FloatArray, FloatArray]:
    """:func:`left_after` of stage i, (M,) each, turn by turn: B(i, k) makes room for later F's."""
    f, b = (left[i].copy() for left in left_after(linear))
    capacity, last = int(linear.capacity[i]), linear.microbatches - 1
    waits = np.array([turn(linear, i, q) for q in range(linear.microbatches - capacity)])
    for k in range(last, -1, -1):
        later = f[k + capacity :]
        b[k] = max(b[k], float((waits[: len(later)] + later).max(initial=0.0)))
        f[k] = max(f[k], linear.round_trip[i] + b[k])
    return f, b
