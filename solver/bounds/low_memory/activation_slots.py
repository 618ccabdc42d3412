"""The slots bound: if memory holds few microbatches, each waits until an earlier one leaves.

A *slot* is the memory for one microbatch.

**Renaming.** Let F(i, k), B(i, k), W(i, k) be the k-th F, B and W that stage i runs, k = 0, 1, ...,
whatever its microbatch. All times and dependencies remain valid. When F(i, k) starts, k + 1
microbatches have passed stage i - 1, so F(i-1, k) ended at least one delay ago. The same holds for
the B's, for B(i, k) after F(i, k), and for W(i, k) after B(i, k). The memory held depends only on
how many ops of each kind have run. So a bound for schedules that run the F's, B's and W's of every
stage in the order of k holds for all schedules.

**Slots.** Let K_i be the number of M_B that fit on stage i. When F(i, k + K_i) starts, its M_B and
those of all other microbatches between F and B fit in memory, so B(i, k) has ended: microbatch k
has left its slot. Suppose that B(i, k + e) is the last B that has ended by then. K_i - 1 - e other
microbatches hold M_B, so at most q(e) W's can be waiting, where q(e) is the largest number of M_W
that fit with K_i - e times M_B. At the end of B(i, k) at least one W was waiting, W(i, k). So
between the end of B(i, k) and the start of F(i, k + K_i), e B's and at least 1 + e - q(e) W's run
one after the other. The minimum of these times over e is a lower bound on the wait.

**Turns.** The same count gives more. When F(i, k + K_i + q) starts, B(i, k) to B(i, k + q) have
ended, and e more, say. Of the W's of all B's that have ended, at most q(e) are waiting. Since the
start of B(i, k) the stage has run these q + 1 + e B's, the F's from k + K_i on, for which B(i, k)
and later B's released memory, and at least q + 1 + e - q(e) W's, as only W(i, k) and later ones can
have run since. So F(i, k + K_i + q) starts no earlier than

    (q + 1) b + q f + the minimum, over e, of e b + max(0, q + 1 + e - q(e)) w

after the start of B(i, k). This time is the *turn* of q. If all slots are taken, they are released
no faster than the stage runs whole microbatches.

**Longest paths.** These waits, the dependencies and the order on each stage are the arcs of an
acyclic graph. The longest path from F(i, 0) to an op of stage i, plus the work that stage i has
left after it, is a lower bound on the span of stage i. The work left is at least

    from the start of F(i, k):  M - k of each kind, as no later one has run;
    from the start of B(i, k):  M - k B's and W's, and the F's from k + K_i on.

From the start of F(i, 0) to the start of another op of stage i, the stage runs at least

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

NEAR = 8  # the number of q for which turns are computed exactly; with larger q they grow linearly


def slots(linear: LinearInstance, lags: FloatArray, spans: FloatArray) -> Bound:
    """The slots bound on the cost: the longest path that the module describes and proves.

    ``lags``: for each stage, the minimum of the cost minus the span of the stage, shape (S,).
    ``spans``: the result of :func:`slot_spans`.
    """
    words = "memory holds few microbatches, and each waits for an earlier one to come back"
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
    """Return a line of an explanation: the minimum ``span`` of stage ``i``, and why it is so long.

    The line contains the work of the stage, and the number of microbatches that fit in its memory.
    """
    return (
        f"rank {linear.ranks[i]} spans at least {duration(span)}, of which it computes for "
        f"{duration(linear.work[i])}: {linear.capacity[i]} of {linear.microbatches} microbatches "
        "fit in its memory"
    )


def slot_spans(linear: LinearInstance) -> FloatArray:
    """The slots bound on the span of each stage, shape (S,).

    A stage without a free slot in memory waits until an earlier microbatch leaves its slot. If all
    microbatches fit in memory on every stage, the result is the work of each stage.
    """
    if linear.capacity.min() >= linear.microbatches:  # all fit: no microbatch waits for a slot
        return linear.work
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
    near: FloatArray,  # (S, NEAR), from slot_turns
    pace: FloatArray,  # (S,), from slot_turns
    done_f: FloatArray,  # (M,), of the source, as the next three; from done_before, left_after
    done_b: FloatArray,
    left_f: FloatArray,
    left_b: FloatArray,
    forward: FloatArray,  # (M, S) scratch: starts of F(s, k), B(s, k) after that of F(source, 0)
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
    """The minimum time from the start of a microbatch's B on the last stage to its B on each stage.

    The second time is the start of that B, too. Shape (S,).
    """
    ways = linear.b[1:] + linear.up[:-1]
    return np.append(np.cumsum(ways[::-1])[::-1], 0.0)


def slot_turns(linear: LinearInstance) -> tuple[FloatArray, FloatArray]:
    """The minimum times from a B to the F's that need the memory it releases (:func:`turn`).

    Returns two arrays: the times for each stage and each q from 0 to NEAR - 1, shape (S, NEAR);
    and, for each stage, the amount by which the time grows when q grows by one beyond that, shape
    (S,).
    """
    stages, last = range(linear.stages), NEAR - 1
    near = np.array([[turn(linear, i, q) for q in range(NEAR)] for i in stages])
    pace = linear.f + linear.b
    for i in stages:
        held = np.arange(linear.capacity[i], 0, -1)
        more = np.arange(linear.capacity[i])  # e
        if (last + 1 + more >= most_waiting(linear, i, held)).all():  # from here on each q adds a W
            pace[i] += linear.w[i]
    return near, pace


def turn(linear: LinearInstance, i: int, q: int) -> float:
    """The minimum time from the start of B(i, k) to the start of F(i, k + K_i + q), for every k.

    F(i, k) and B(i, k) are the k-th F and the k-th B that stage i runs, and K_i is the number of
    M_B that fit in the stage's memory. With q = 0, the F uses the memory that the B releases.
    """
    return float((q + 1) * linear.b[i] + q * linear.f[i] + _besides(linear, i, q))


def slot_wait(linear: LinearInstance) -> FloatArray:
    """The minimum time for which a memory slot of each stage stays empty, shape (S,).

    It is the minimum time from the end of the k-th B to the start of the (k + K)-th F, where K is
    the number of M_B that fit in the stage's memory.
    """
    return np.array([_besides(linear, i, 0) for i in range(linear.stages)])


def _besides(linear: LinearInstance, i: int, q: int) -> float:
    """The minimum time of other ops in the :func:`turn` of q: what its q + 1 B's and q F's leave.

    These ops are the further B's, and the W's, that must run in between.
    """
    more = np.arange(linear.capacity[i])  # e
    waiting = most_waiting(linear, i, linear.capacity[i] - more)
    weights = np.maximum(0, q + 1 + more - waiting)
    return float((more * linear.b[i] + weights * linear.w[i]).min())


def turnover_time(linear: LinearInstance) -> FloatArray:
    """The minimum time per microbatch on each stage once all its slots are taken, shape (S,).

    A slot is the memory for one M_B. It is taken from the start of an F to the end of its B, and
    then empty for :func:`slot_wait`.
    """
    return (linear.round_trip + linear.b + slot_wait(linear)) / linear.capacity


def slots_limit_rate(linear: LinearInstance, share: float = 1.0) -> bool:
    """Whether memory makes some stage slower than its work does.

    That is, whether not all microbatches fit in the memory of some stage, and its
    :func:`turnover_time` exceeds ``share`` times its work per microbatch.
    """
    slow = turnover_time(linear) > share * (linear.f + linear.b + linear.w)
    return bool((slow & (linear.capacity < linear.microbatches)).any())


def most_waiting(linear: LinearInstance, i: int, held: IntArray) -> FloatArray:
    """The maximum number of W's of stage ``i`` that can wait while memory also holds ``held`` M_B.

    ``held`` may have any shape, and the result has the same shape. The result is 2 M where nothing
    limits the number.
    """
    room = linear.limit[i] - held * linear.m_b[i]
    return counts_within(room, linear.m_w[i], 2.0 * linear.microbatches)


def done_before(linear: LinearInstance) -> tuple[FloatArray, FloatArray]:
    """The minimum times from the start of a stage's first F to the starts of its later ops.

    Returns two arrays of shape (S, M), with k from 0 to M - 1: the times to the start of the
    stage's k-th F, and to that of its k-th B.
    """
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
    """The minimum total time of the B's and W's that run before a stage's k-th F.

    The result has shape (M,), for k from 0 to M - 1. ``b``, ``w``: T_B and T_W of the stage.
    ``waiting[h]``: the maximum number of W's that can wait while h M_B are held, including the M_B
    of the k-th F.
    """
    least = np.full(microbatches, np.inf)
    for k in range(microbatches):
        for held in range(1, min(len(waiting) - 1, k + 1) + 1):
            gone = k + 1 - held  # B's before F(i, k)
            least[k] = min(least[k], gone * b + max(0.0, gone - waiting[held]) * w)
    return least


def left_after(linear: LinearInstance) -> tuple[FloatArray, FloatArray]:
    """The minimum times from the start of a stage's ops to the end of its last op.

    Returns two arrays of shape (S, M), with k from 0 to M - 1: the times from the start of the
    stage's k-th F, and from that of its k-th B.
    """
    left = linear.microbatches - np.arange(linear.microbatches)
    f, b, w = (time[:, None] for time in (linear.f, linear.b, linear.w))
    later = np.maximum(0, left - linear.capacity[:, None])
    return left * (f + b + w), left * (b + w) + later * f


def rest_after(linear: LinearInstance, i: int) -> tuple[FloatArray, FloatArray]:
    """The minimum times from the start of the ops of stage ``i`` to the end of its last op.

    Returns two arrays of shape (M,), with k from 0 to M - 1: the times from the start of the
    stage's k-th F, and from that of its k-th B. They are the times of :func:`left_after`, raised by
    :func:`turn`: the (k + K + q)-th F, with K the number of M_B that fit in memory, starts at least
    a turn after the k-th B starts, and is followed by its own remaining time.
    """
    f, b = (left[i].copy() for left in left_after(linear))
    capacity, last = int(linear.capacity[i]), linear.microbatches - 1
    waits = np.array([turn(linear, i, q) for q in range(linear.microbatches - capacity)])
    for k in range(last, -1, -1):
        later = f[k + capacity :]
        b[k] = max(b[k], float((waits[: len(later)] + later).max(initial=0.0)))
        f[k] = max(f[k], linear.round_trip[i] + b[k])
    return f, b
