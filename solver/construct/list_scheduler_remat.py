"""The list scheduler with recomputation, for one stage per rank.

It works as :mod:`.list_scheduler_linear`, but an F that finds no room for its M_B may run all the
same, if its microbatch is to be recomputed. A free rank runs the first of these that is possible: a
B whose input and activations are there, of the microbatch that has waited longest; the R of a
microbatch whose B's input is there or arrives within ``lead`` x T_R; an F as there; a W. So a
microbatch that stays overtakes those that wait to be recomputed, and releases its memory as soon as
possible.

Room for one M_B is reserved for recomputed microbatches, as otherwise none of their B's could run.
A microbatch that stays may take that room, because its own B releases it. So a rank may fill its
memory with such microbatches while others are on their way down, and recompute those afterwards.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ..core.kernels import State, earliest, inlined, normal, packed, random
from ..core.linear_instance import LinearInstance
from .list_scheduler_linear import change_gaps

_F, _B, _W, _R = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.R))
_STAYS, _GONE, _BACK, _DONE, _FILLS = range(5)  # the state of a microbatch's activations
IDLE = 50  # after this many decisions per stage without an op the schedule is stuck
_NEVER, _BESIDE, _EVER = range(3)  # whether a microbatch may stay


class WholeRemat(NamedTuple):
    """By stage, (S,): T_R (infinite if it cannot be recomputed), and what is kept until the R."""

    t_r: FloatArray
    kept: FloatArray


class RematListParameters(NamedTuple):
    """The heuristic parameters, by stage; ``gap`` by microbatch and ``stay`` by both.

    ``keep``: the most microbatches that may stay between F and B at once. ``again``: the most that
    may wait for their R. ``lead``: how long before the input of B arrives the R may start, in
    T_R's. ``stay``: 0 if a microbatch is recomputed whenever possible, 1 if it may stay provided
    that the reserved room is left free, 2 if it may take the reserved room. The others are those of
    :class:`.list_scheduler_linear.LinearListParameters`.
    """

    keep: IntArray
    again: IntArray
    ahead: IntArray
    defer: IntArray
    fill: FloatArray
    patience: FloatArray
    lead: FloatArray
    gap: FloatArray
    stay: IntArray

    @classmethod
    def drawn(cls, linear: LinearInstance, rng: np.random.Generator) -> Self:
        """Random parameters, equal on all stages."""
        every, m = np.ones(linear.stages), linear.microbatches
        most = np.maximum(1, linear.capacity)
        unit = float((linear.f + linear.b + linear.down + linear.up).max())
        gap = np.full(m, float(rng.choice([0.0, 0.5, 1.0])) * unit)
        period = int(rng.integers(1, 6))
        gap[period - 1 :: period] += float(rng.choice([0.0, 0.5, 1.0])) * unit
        work = linear.f + linear.b + linear.w
        shares = np.divide(linear.round_trip, work, out=float(m) * every, where=work > 0)
        again = int(rng.choice([m, max(1, m // 2), 2 * linear.stages]))
        stay = np.full((linear.stages, m), _BESIDE)
        if rng.random() < 0.5:
            stay[:, : most[0]] = stay[:, m - most[0] :] = _EVER
        return cls(
            most.copy(),
            np.full(linear.stages, again),
            np.rint(shares * rng.uniform(0.0, 2.0)).astype(np.int64),
            np.full(linear.stages, int(rng.choice([0, 1, m]))),
            float(rng.uniform(0.0, 1.2)) * every,
            float(rng.uniform(0.0, 1.0)) * every,
            float(rng.uniform(0.0, 1.5)) * every,
            gap,
            stay,
        )

    def copy(self) -> RematListParameters:
        return RematListParameters._make(array.copy() for array in self)


@kernel
def remat_list_schedule(  # noqa: PLR0917
    linear: LinearInstance,
    remat: WholeRemat,
    parameters: RematListParameters,
    makespan: bool,
    order: IntArray,  # (S, 4M) out: packed ops
    number: IntArray,  # (S,) out: number of ops
    f_end: FloatArray,  # (S, M) scratch
    comes: FloatArray,  # (S, M) scratch: when the input of B arrives
    fate: npt.NDArray[np.int8],  # (S, M) scratch
) -> tuple[float, float]:
    """Fill ``order``; returns its cost and the mean span of the stages.

    Both are infinite if no op can start any more.
    """
    f, b, w, m_b, m_w, limit, down, up = linear[:8]
    t_r, kept = remat
    keep, again, ahead, defer, fill, patience, lead, gap, stay = parameters
    stages, microbatches = f_end.shape
    f_end[:] = np.inf
    comes[:] = np.inf
    number[:] = 0
    clock, free, first = np.full(stages, np.inf), np.zeros(stages), np.zeros(stages)
    clock[0] = 0.0
    held = np.zeros(stages)
    forwards, low = np.zeros(stages, dtype=np.int64), np.zeros(stages, dtype=np.int64)
    backwards, weights = np.zeros(stages, dtype=np.int64), np.zeros(stages, dtype=np.int64)
    staying, away = np.zeros(stages, dtype=np.int64), np.zeros(stages, dtype=np.int64)
    fills = np.zeros(stages, dtype=np.int64)  # microbatches that took the reserved room
    # microbatches in the order of their B's
    behind = np.empty((stages, microbatches), dtype=np.int64)
    back = np.full(stages, -1, dtype=np.int64)  # the recomputed microbatch that waits for its B
    entered = -np.inf
    left, idle = 3 * stages * microbatches, 0
    while left > 0:
        i = earliest(clock)
        now = clock[i]
        if now == np.inf:
            return np.inf, np.inf
        nf, nb, nw = forwards[i], backwards[i], weights[i]
        rest = m_b[i] - kept[i]
        while low[i] < nf and fate[i, low[i]] == _DONE:
            low[i] += 1
        ready, ready_at, gone, gone_at = _first_there(comes[i], fate[i], low[i], nf)
        f_comes = np.inf
        if nf < microbatches:
            f_comes = entered + gap[nf] if i == 0 else f_end[i - 1, nf] + down[i - 1]
        reserve = rest if t_r[i] < np.inf and back[i] < 0 and fills[i] == 0 else 0.0
        beside = held[i] + m_b[i] + reserve <= limit[i]
        goes = away[i] < again[i] and t_r[i] < np.inf and held[i] + kept[i] + reserve <= limit[i]
        stays = held[i] + m_b[i] <= limit[i]
        if t_r[i] < np.inf:
            may = stay[i, min(nf, microbatches - 1)]
            stays = stays and staying[i] < keep[i] and (may == _EVER or (may == _BESIDE and beside))
        early = gone >= 0 and back[i] < 0 and gone_at <= now + lead[i] * t_r[i]
        fits = held[i] + rest <= limit[i]
        b_comes = min(ready_at, max(now, gone_at) + t_r[i] if gone >= 0 else np.inf)
        kind = _kind(
            now, f_comes, ready_at, gone_at, b_comes, stays or goes, nf - nb < ahead[i],
            early, fits, nb - nw, defer[i], patience[i], fill[i], f[i], w[i], t_r[i],
        )  # fmt: skip
        idle = idle + 1 if kind < 0 else 0
        if idle > IDLE * stages:
            return np.inf, np.inf
        if kind < 0:
            starts = gone_at - lead[i] * t_r[i] if gone >= 0 and back[i] < 0 else np.inf
            clock[i] = _next_event(now, f_comes, ready_at, np.inf if early else starts, b_comes)
            continue
        wakes = -1
        arrival = 0.0
        at = number[i]
        if kind == _F:
            order[i, at] = packed(_F, i, nf)
            if nf == 0:
                first[i] = now
            if i == 0:
                entered = now
            end = now + f[i]
            f_end[i, nf] = end
            forwards[i] += 1
            fate[i, nf] = (_STAYS if beside else _FILLS) if stays else _GONE
            held[i] += m_b[i] if stays else kept[i]
            if stays:
                staying[i] += 1
                fills[i] += not beside
            else:
                away[i] += 1
            if i + 1 < stages:
                wakes, arrival = i + 1, end + down[i]
            else:
                comes[i, nf] = end
            left -= 1
        elif kind == _R:
            order[i, at] = packed(_R, i, gone)
            end = now + t_r[i]
            fate[i, gone] = _BACK
            back[i] = gone
            held[i] += rest
        elif kind == _B:
            order[i, at] = packed(_B, i, ready)
            end = now + b[i]
            behind[i, nb] = ready
            backwards[i] += 1
            held[i] += m_w[i] - m_b[i]
            if fate[i, ready] == _BACK:
                back[i] = -1
                away[i] -= 1
            else:
                staying[i] -= 1
                fills[i] -= fate[i, ready] == _FILLS
            fate[i, ready] = _DONE
            if i > 0:
                wakes, arrival = i - 1, end + up[i - 1]
                comes[i - 1, ready] = arrival
            left -= 1
        else:
            order[i, at] = packed(_W, i, behind[i, nw])
            end = now + w[i]
            weights[i] += 1
            held[i] -= m_w[i]
            left -= 1
        number[i] += 1
        free[i] = end
        clock[i] = end
        if wakes >= 0 and clock[wakes] > max(arrival, free[wakes]):
            clock[wakes] = max(arrival, free[wakes])
            if kind == _B and t_r[wakes] < np.inf:  # an R may run before that
                clock[wakes] = max(free[wakes], min(clock[wakes], now))
    spans = free - first
    return free.max() if makespan else spans.max(), spans.mean()


@inlined
def _first_there(
    comes: FloatArray, fate: npt.NDArray[np.int8], first: int, last: int
) -> tuple[int, float, int, float]:
    """The microbatch that stays, or is recomputed already, whose B can run first, and when.

    Then the first that is still to be recomputed, and when the input of its B arrives. -1 if none.
    """
    ready = gone = -1
    ready_at = gone_at = np.inf
    for j in range(first, last):
        if fate[j] == _GONE:
            if comes[j] < gone_at:
                gone, gone_at = j, comes[j]
        elif fate[j] != _DONE and comes[j] < ready_at:
            ready, ready_at = j, comes[j]
    return ready, ready_at, gone, gone_at


@inlined
def _kind(  # noqa: PLR0911, PLR0917
    now: float,
    f_comes: float,
    ready_at: float,
    gone_at: float,
    b_comes: float,
    enters: bool,  # an F finds room, or is to be recomputed
    soon: bool,  # fewer than `ahead` are between F and B: an F goes first
    early: bool,  # an R may start
    fits: bool,  # it finds room
    owed: int,  # number of W's that wait
    defer: int,
    patience: float,
    fill: float,
    f: float,
    w: float,
    t_r: float,
) -> int:
    """The kind of op that a rank runs now; -1 if none."""
    f_there = f_comes <= now
    if f_there and enters and soon:
        return _F
    if ready_at <= now:
        return _B
    if early and fits and ready_at >= now + patience * t_r:
        return _R
    if owed > 0 and ((early and not fits) or (f_there and not enters) or owed > defer):
        return _W
    if f_there and enters and b_comes >= now + patience * f:
        return _F
    if owed > 0 and min(ready_at, gone_at, f_comes if enters else np.inf) >= now + fill * w:
        return _W
    return -1


@inlined
def _next_event(
    now: float, f_comes: float, ready_at: float, r_starts: float, b_comes: float
) -> float:
    """When a rank that runs nothing now decides again."""
    event = min(ready_at, max(r_starts, 0.0), f_comes if f_comes > now else b_comes)
    if event > now:
        return event
    return min(ready_at if ready_at > now else np.inf, b_comes if b_comes > now else np.inf)


@kernel
def tune_remat_list(  # noqa: PLR0917
    linear: LinearInstance,
    remat: WholeRemat,
    parameters: RematListParameters,  # changed in place
    makespan: bool,
    best: IntArray,  # (S, 4M) out: the best order found, if it costs less than best_cost
    best_number: IntArray,  # (S,) out
    best_cost: float,
    unit: float,  # size of the changes of a gap
    hot: float,  # temperature of the first move, in units of cost; `cold`: of the last
    cold: float,
    moves: int,
    state: State,  # changed in place
    stopped: npt.NDArray[np.bool_],  # (1,), ends the search when set
) -> tuple[float, float]:
    """Simulated annealing, ``moves`` moves; returns the costs of ``best`` and ``parameters``."""
    keep, again, ahead, defer, fill, patience, lead, gap, stay = parameters
    capacity, (stages, microbatches) = linear.capacity, stay.shape
    order, number = np.empty_like(best), np.empty_like(best_number)
    f_end, comes = np.empty((stages, microbatches)), np.empty((stages, microbatches))
    fate = np.empty((stages, microbatches), dtype=np.int8)
    old_whole = np.empty((4, stages), dtype=np.int64)
    old_real, old_gap, old_stay = np.empty((3, stages)), gap.copy(), stay.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current, reached = hot, np.inf, np.inf
    for move in range(-1, moves):
        if stopped[0]:
            break
        temperature *= cooling
        old_whole[0], old_whole[1], old_whole[2], old_whole[3] = keep, again, ahead, defer
        old_real[0], old_real[1], old_real[2], old_gap[:] = fill, patience, lead, gap
        old_stay[:] = stay
        if move >= 0:
            for _ in range(1 + int(2 * random(state))):
                kind, i = random(state), int(random(state) * stages)
                if kind < 0.3:
                    change_gaps(gap, capacity[0], unit, state)
                    continue
                reach = random(state)  # one stage, this and all later ones, or all stages
                last = i + 1 if reach < 0.6 else stages
                more = 1 if random(state) < 0.5 else -1
                by = 0.3 * normal(state)
                which, may = int(random(state) * microbatches), int(random(state) * 3)
                for k in range(0 if reach > 0.8 else i, last):
                    if kind < 0.4:
                        stay[k, which] = may
                    elif kind < 0.5:
                        keep[k] = min(max(0, keep[k] + more), capacity[k])
                    elif kind < 0.57:
                        again[k] = min(max(0, again[k] + more), microbatches)
                    elif kind < 0.67:
                        ahead[k] = min(max(0, ahead[k] + more), microbatches)
                    elif kind < 0.72:
                        defer[k] = max(0, min(defer[k], microbatches) + more)
                    elif kind < 0.8:
                        fill[k] = max(0.0, fill[k] + by)
                    elif kind < 0.9:
                        patience[k] = max(0.0, patience[k] + by)
                    else:
                        lead[k] = max(0.0, lead[k] + by)
        cost, mean = remat_list_schedule(
            linear, remat, parameters, makespan, order, number, f_end, comes, fate
        )
        value = cost + 0.05 * mean
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current, reached = value, cost
            if cost < best_cost:
                best_cost = cost
                best[:], best_number[:] = order, number
        else:
            keep[:], again[:], ahead[:], defer[:] = old_whole
            fill[:], patience[:], lead[:], gap[:] = old_real[0], old_real[1], old_real[2], old_gap
            stay[:] = old_stay
    return best_cost, reached
