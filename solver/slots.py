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

from pipeloom.ir.ops import FloatArray, IntArray

from .chain import Chain

BLOCK = 32
"""Stages whose paths are followed side by side: bounds the memory this takes."""


def slots(chain: Chain, lags: FloatArray) -> float:
    """The longest of the paths above; see there for the proof."""
    if chain.capacity.min() >= chain.microbatches:  # no microbatch waits for another's slot
        return 0.0
    return float(slot_spans(chain, lags).max())


def slot_spans(chain: Chain, lags: FloatArray) -> FloatArray:
    """The bound of :func:`slots` by stage, shape (S,)."""
    arcs = _Arcs(chain)
    blocks = np.array_split(np.arange(chain.stages), -(-chain.stages // BLOCK))
    return np.concatenate([arcs.spans(block) + lags[block] for block in blocks])


class _Arcs:
    """The graph, and its longest paths from the first F's of some stages."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.done_f, self.done_b = done_before(chain)
        self.left_f, self.left_b = left_after(chain)
        self.leaves = chain.b + slot_wait(chain)  # B's start to the slot free
        self.down = chain.offset
        self.up = ways_up(chain)

    def spans(self, sources: IntArray) -> FloatArray:
        """What each of ``sources`` spans at least."""
        c, rows = self.chain, np.arange(len(sources))
        # [k, i, s]: the start of F(s, k), of B(s, k), after that of F(sources[i], 0)
        forward = np.full((c.microbatches, len(sources), c.stages), -np.inf)
        backward = np.full_like(forward, -np.inf)
        span = np.zeros(len(sources))
        for k in range(c.microbatches):
            f, b = forward[k], backward[k]
            f[rows, sources], b[rows, sources] = self.done_f[sources, k], self.done_b[sources, k]
            if k > 0:
                np.maximum(f, forward[k - 1] + c.f, out=f)
                np.maximum(b, backward[k - 1] + c.b, out=b)
            full = np.flatnonzero(c.capacity <= k)
            freed = backward[k - c.capacity[full], :, full].T + self.leaves[full]
            f[:, full] = np.maximum(f[:, full], freed)
            f[:] = np.maximum.accumulate(f - self.down, axis=1) + self.down
            np.maximum(b[:, -1], f[:, -1] + c.f[-1], out=b[:, -1])
            b[:] = np.maximum.accumulate((b - self.up)[:, ::-1], axis=1)[:, ::-1] + self.up
            span = np.maximum(span, f[rows, sources] + self.left_f[sources, k])
            span = np.maximum(span, b[rows, sources] + self.left_b[sources, k])
        return span


def ways_up(chain: Chain) -> FloatArray:
    """From the start of a B on the last stage to that of the same microbatch on each, shape (S,)."""
    legs = chain.b[1:] + chain.up[:-1]
    return np.append(np.cumsum(legs[::-1])[::-1], 0.0)


def slot_wait(chain: Chain) -> FloatArray:
    """From the end of B(i, k) to the start of F(i, k + K_i), at least, shape (S,)."""
    waits = np.empty(chain.stages)
    for i in range(chain.stages):
        later = np.arange(chain.capacity[i])  # e
        weights = np.maximum(0, 1 + later - _waiting(chain, i, chain.capacity[i] - later))
        waits[i] = (later * chain.b[i] + weights * chain.w[i]).min()
    return waits


def _waiting(chain: Chain, i: int, held: IntArray) -> FloatArray:
    """The most W's that wait where ``held`` M_B are held; more than M where there is no limit."""
    most = np.full(np.shape(held), 2.0 * chain.microbatches)
    if chain.m_w[i] > 0:
        room = chain.limit[i] - held * chain.m_b[i]
        most = np.minimum(most, np.floor(room / chain.m_w[i]))
    return most


def done_before(chain: Chain) -> tuple[FloatArray, FloatArray]:
    """From the start of F(i, 0) to those of F(i, k) and B(i, k), shape (S, M), at least."""
    k = np.arange(chain.microbatches)
    f, b = np.empty((2, chain.stages, chain.microbatches))
    for i in range(chain.stages):
        held = np.arange(1, chain.capacity[i] + 1)  # M_B, F(i, k)'s own included
        gone = k[:, None] + 1 - held  # B's before F(i, k)
        weights = np.maximum(0, gone - _waiting(chain, i, held))
        busy = np.where(gone >= 0, gone * chain.b[i] + weights * chain.w[i], np.inf)
        f[i] = k * chain.f[i] + busy.min(axis=1)
        late = np.maximum(0, k - _waiting(chain, i, np.array(1)))
        b[i] = np.maximum((k + 1) * chain.f[i], chain.round_trip[i]) + k * chain.b[i]
        b[i] = np.maximum(b[i], (k + 1) * chain.f[i] + k * chain.b[i] + late * chain.w[i])
    return f, b


def left_after(chain: Chain) -> tuple[FloatArray, FloatArray]:
    """From the start of F(i, k), of B(i, k), to the last end on stage i, shape (S, M), at least."""
    left = chain.microbatches - np.arange(chain.microbatches)
    f, b, w = (time[:, None] for time in (chain.f, chain.b, chain.w))
    later = np.maximum(0, left - chain.capacity[:, None])
    return left * (f + b + w), left * (b + w) + later * f
