"""The timing of lists forward in time, for what the simulator's kernel cannot do.

The rank with the earliest clock runs its next op, or waits for its input.

- *Filling*: lists hold only F's and B's, and W's fill the time between them. A rank runs the W that
  has waited longest if the next F lacks memory, or the next input is late enough.
- *Pairs*: an F that is followed by the B and the W of another microbatch or stage runs at once with
  them if that is faster.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import of_kind, of_pair
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import IntArray, OpKind

from ...core.kernels import CostArrays, earliest, fields, kind_of
from .lists import Filling, Lists, PairTimes

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))


@kernel
def play(lists: Lists, filling: Filling | None, pairs: PairTimes | None) -> bool:
    """Time all ops, and fill in W's; False if some op can never start."""
    clock, offsets = lists.clock, lists.offsets
    lists.f_end[:], lists.b_end[:] = np.inf, np.inf
    for r in range(len(clock)):
        clock[r], lists.free[r], lists.held[r] = 0.0, 0.0, 0.0
        lists.position[r] = offsets[r]
        if filling is not None:
            filling.at[r] = 3 * offsets[r] // 2
            filling.oldest[r] = filling.newest[r] = offsets[r] // 2
    left = len(lists.start)
    while left > 0:
        r = earliest(clock)
        if clock[r] == np.inf:
            return False
        ran = _run(r, lists, pairs) if filling is None else _fill(r, lists, filling)
        if ran < 0:
            return False
        left -= ran
    return True


@kernel
def _fill(r: int, lists: Lists, filling: Filling) -> int:
    """Run the rank's next op or a W, or wait. Returns how many ops ran, -1 if none ever can."""
    costs, now = lists.costs, lists.clock[r]
    op, weight, full, came = -1, -1, False, np.inf
    if filling.oldest[r] < filling.newest[r]:
        weight = filling.queue[filling.oldest[r]]
    if lists.position[r] < lists.offsets[r + 1]:
        op = lists.order[lists.position[r]]
        kind, stage, microbatch = fields(op)
        came = _arrival(op, lists)
        full = kind == _F and lists.held[r] + of_pair(costs.m_b, stage, microbatch) > costs.limit[r]
    if full or came > now:
        runs_w = weight >= 0
        if runs_w and op >= 0 and not full:
            _, stage, microbatch = fields(weight)
            takes = of_kind(costs.durations, _W, stage, microbatch)
            runs_w = came - now >= filling.patience[r] * takes
        if not runs_w:
            lists.clock[r] = came
            return -1 if full else 0
        op = weight
    at = filling.at[r]
    filling.at[r] += 1
    filling.order[at], filling.source[at] = op, lists.position[r]
    kind, stage, microbatch = fields(op)
    if kind == _W:
        filling.oldest[r] += 1
    else:
        lists.position[r] += 1
    if kind == _B:
        filling.queue[filling.newest[r]] = op - _B + _W
        filling.newest[r] += 1
    lists.start[at] = now
    lists.end[at] = now + of_kind(costs.durations, kind, stage, microbatch)
    _finish(r, op, lists.end[at], lists)
    return 1


@kernel
def _run(r: int, lists: Lists, pairs: PairTimes | None) -> int:
    """Run the rank's next op or pair, or wait. Returns how many ops ran."""
    order, at, stop, now = lists.order, lists.position[r], lists.offsets[r + 1], lists.clock[r]
    if at == stop:
        lists.clock[r] = np.inf
        return 0
    came, count = _arrival(order[at], lists), 1
    kind, stage, microbatch = fields(order[at])
    takes = of_kind(lists.costs.durations, kind, stage, microbatch)
    if pairs is not None and is_pair(order, at, stop, lists.costs, pairs):
        _, other, _ = fields(order[at + 1])
        came = max(came, _arrival(order[at + 1], lists))
        count, takes = 3, pairs[stage, other]
    if came > now:
        lists.clock[r] = came
        return 0
    lists.position[r] += count
    for k in range(at, at + count):
        lists.start[k], lists.end[k] = now, now + takes
        _finish(r, order[k], now + takes, lists)
    return count


@kernel
def is_pair(order: IntArray, at: int, stop: int, costs: CostArrays, pairs: PairTimes) -> bool:
    """Whether the F of a pair is at a position; the rank's ops end before ``stop``."""
    if at + 2 >= stop or kind_of(order[at]) != _F or kind_of(order[at + 1]) != _B:
        return False
    if order[at + 2] != order[at + 1] - _B + _W or order[at + 1] - _B == order[at] - _F:
        return False
    _, f, _ = fields(order[at])
    _, b, _ = fields(order[at + 1])
    times = costs.durations
    return bool(pairs[f, b] < times[_F, f] + times[_B, b] + times[_W, b])


@kernel
def _arrival(op: int, lists: Lists) -> float:
    """When the input of an op arrives; infinite if it has not been computed."""
    costs = lists.costs
    kind, stage, microbatch = fields(op)
    came = 0.0
    if kind == _F and stage > 0:
        came = lists.f_end[stage - 1, microbatch] + costs.into_f[stage, microbatch]
    elif kind == _B and stage < len(costs.owner) - 1:
        came = lists.b_end[stage + 1, microbatch] + costs.into_b[stage, microbatch]
    return came


@kernel
def _finish(r: int, op: int, end: float, lists: Lists) -> None:
    """Record the end of an op, and wake the rank that waits for it."""
    costs = lists.costs
    kind, stage, microbatch = fields(op)
    lists.clock[r] = lists.free[r] = end
    wakes, arrival = -1, np.inf
    if kind == _F:
        lists.f_end[stage, microbatch] = end
        lists.held[r] += of_pair(costs.m_b, stage, microbatch)
        if stage + 1 < len(costs.owner):
            wakes = costs.owner[stage + 1, microbatch]
            arrival = end + costs.into_f[stage + 1, microbatch]
    elif kind == _B:
        lists.b_end[stage, microbatch] = end
        lists.held[r] += of_pair(costs.m_w, stage, microbatch)
        lists.held[r] -= of_pair(costs.m_b, stage, microbatch)
        if stage > 0:
            wakes = costs.owner[stage - 1, microbatch]
            arrival = end + costs.into_b[stage - 1, microbatch]
    else:
        lists.held[r] -= of_pair(costs.m_w, stage, microbatch)
    if wakes >= 0 and wakes != r:
        lists.clock[wakes] = min(lists.clock[wakes], max(arrival, lists.free[wakes]))
