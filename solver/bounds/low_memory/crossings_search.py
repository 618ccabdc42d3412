"""The crossings bound with more slots: each microbatch on its way up meets several others.

The terms *meet*, *down to* and *up to* a stage are those of :mod:`.crossings`.

**Microbatches under way.** As in :mod:`.crossings`, consider only every d-th microbatch, with n d
>= K. Then F(t + n) of stage i starts no earlier than a turn (:mod:`.activation_slots`) after B(t).
On its way up, t meets t + 1, t + 2, ..., t + n - 1 on their way down. Let c_j be the last stage on
which F(t + j) runs before B(t), or i - 1 if there is none. This is the stage where t *meets* t + j.
Then

    c_1 >= c_2 >= ..., as F(s, t+j) ends before F(s, t+j+1) starts;
    c_j >= the c_(j+1) of t - 1, as B(s, t-1) ends before B(s, t) starts.

Let y be a lower bound on the start of B(s, t) minus the time up from stage S - 1 to s, and v_j one
on the start of F(s, t+j) minus the time down from i to s. Each holds on a range of stages: y on the
stages above c_1 at first, v_j on the stages below the last meeting of t + j. The dependencies and
the order on the stages c_j and c_j + 1 change them when t meets t + j:

    v_j  the larger of itself and y + up to c_j + 1 + b - down to there, on stages after c_j;
    y    the larger of itself and v_j + down to c_j + f - up to there, on stages up to c_j.

The first uses the y that holds on c_j + 1 (before any meeting on c_j). The second applies only if
v_j holds on c_j (c_j > the last meeting of t + j). After all meetings y bounds the end of B(i, t),
hence with the turn also F(i, t+n), and v_1 bounds the start of B(S-1, t+1).

**Search.** A state is a choice of meetings with the numbers y, v_1, ... The choices of c_1, c_2,
... are enumerated one after the other, for t = 0, 1, ... Among states with the same meetings, one
is dropped if another is no larger in every number. If there are too many states, close ones are
merged into one with the minimum of each number. If there are still too many, the worst are given
up: the minimum of their ``low`` then limits the bound.

**Low.** ``low`` of a state is a lower bound on the span of any schedule through the state: what its
numbers imply for some F or B on stage i, plus the minimum time from there to the end. A state whose
``low`` reaches the ceiling, the cost of some schedule, is dropped: no cheaper schedule passes
through it.

**The rest.** Without the first t microbatches, what is left is the same instance with fewer
microbatches. So the minimum time from F(i, 0) to B(i, m) over all states, E(m), also holds from
F(i, t) to B(i, t+m), and bounds the rest of the schedule. For states that were given up, E(m) uses
what their numbers imply. Each pass keeps more states than the pass before it, and starts from the
bounds on the rest that the pass before it found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray

from ...core.linear_instance import LinearInstance
from ...core.stopping import Budget
from .activation_slots import done_before, rest_after, turn, ways_up
from .crossings import slowest_stage

FEWEST, MOST = 3, 8  # numbers n of microbatches under way; n = 2 is :mod:`.crossings`
STATES = (300, 1000, 3000, 10_000, 30_000)  # largest number of states kept, by pass
CROWD = 8  # up to this many times STATES are compared in pairs; more are first merged if close
CELL = 1e-7  # states closer than this are always merged; in units of the ceiling
COARSEST = 3e-3  # states farther apart than this are not merged but given up
TINY = 1e-200  # no search for smaller costs: CELL times them would underflow
NEARLY = 0.9  # the search runs if the turnover time exceeds this share of the work per microbatch
HOPEFUL = 0.97  # an n is given up if its bound is below this share of the best one
FOLLOWER = 10  # work of a search per state and microbatch under way, in simulated ops

_States = tuple[npt.NDArray[np.int16], FloatArray]  # ``met`` and ``numbers`` of each, see below


def crossings_bound(
    linear: LinearInstance,
    lags: FloatArray,
    ceiling: float,
    budget: Budget | None = None,
    known: float = 0.0,
) -> float:
    """The highest crossings bound on the cost, over all numbers n of microbatches under way.

    With n, each of the microbatches considered meets n - 1 others on its way up. The result is at
    most ``ceiling``, and 0 if all microbatches fit in memory.

    ``lags``: for each stage, the minimum of the cost minus the span of the stage, shape (S,).
    ``ceiling``: the cost of some schedule. ``known``: another lower bound on the cost. An n is
    given up if its bound is far below ``known`` or below the bound of another n.
    """
    budget = budget or Budget()
    i = slowest_stage(linear)
    lag = float(lags[i])
    if linear.capacity[i] >= linear.microbatches or ceiling - lag < TINY:
        return 0.0
    found = counts(int(linear.capacity[i]))
    meetings = linear.stages - i + 1  # the key of n - 1 meetings must fit into one integer
    searches = [
        CrossingsSearch(linear, i, n, ceiling - lag) for n in found if meetings ** (n - 1) < 2**63
    ]
    best = 0.0
    for states in STATES:
        for search in searches:
            hopeful = search.found + lag >= HOPEFUL * max(best, known)
            if hopeful and not search.exact and not budget():
                search.found = search.run(states, budget)
                best = max(best, search.found + lag)
                if best >= ceiling:
                    return ceiling
    return best


def counts(capacity: int) -> list[int]:
    """The numbers n of microbatches under way to search with, in ascending order.

    ``capacity``: the number of M_B that fit in memory. If only every d-th microbatch is considered,
    n = capacity / d, rounded up, of them are under way at the same time.
    """
    steps = range(-(-capacity // FEWEST), 0, -1)
    found = {-(-capacity // d) for d in steps}
    return sorted(n for n in found if FEWEST <= n <= MOST)


class CrossingsSearch:
    """The crossings search over every d-th microbatch, with ``n`` of these under way.

    ``i``: the stage whose span is bounded; the search numbers it 0 and the following stages 1, 2,
    ... ``ceiling``: the maximum span of this stage. A state is a row of ``met`` and a row of
    ``numbers``, in the module's terms. ``met``: the stage of the last meeting of t, then those of
    the last meetings of t+1, ..., t+n-2. ``numbers``: ``low``; y; the y that holds above the last
    meeting; the start of B(S-1, t); v_1, ..., v_(n-1). While t meets the others, the entries of the
    microbatches that it has met are already those for t + 1.

    ``found``: the bound of the last call of :meth:`run`, inf before the first call. ``exact``:
    whether the search kept all states, so that more states would not raise the bound.
    """

    def __init__(self, linear: LinearInstance, i: int, n: int, ceiling: float) -> None:
        self.n, self.ceiling, capacity = n, ceiling, int(linear.capacity[i])
        self.d = d = -(-capacity // n)
        self.f, self.b = linear.f[i:], linear.b[i:]
        self.up, self.down = ways_up(linear)[i:], linear.offset[i:] - linear.offset[i]
        self.turn = turn(linear, i, n * d - capacity)  # B(t) to F(t+n)
        self.trip = float(self.down[-1] + self.f[-1] + self.up[0])  # F(t) to B(t)
        first, last = (linear.microbatches - 1) % d, (linear.microbatches - 1) // d
        self.last = last  # t
        self.done = float(done_before(linear)[0][i, first])
        rest_f, rest_b = rest_after(linear, i)
        self.rest_f, self.rest_b = rest_f[first::d].copy(), rest_b[first::d].copy()
        self.exact, self.found = False, float("inf")
        self.between = np.empty(last + 1)  # E
        for m in range(last + 1):
            self.between[m] = self.trip if m == 0 else self.between[m - 1] + d * self.b[0]
            if m >= n:
                self.between[m] = max(self.between[m], self.between[m - n] + self.turn + self.trip)

    def run(self, states: int, budget: Budget) -> float:
        """Run the search once, with at most ``states`` states at any time.

        Returns a lower bound on the span of stage ``i``, at most the ceiling. Raises the bounds on
        the time of the remaining microbatches, with which the next call starts.
        """
        self._improve_rest()
        n, top = self.n, len(self.f) - 1
        met = np.full((1, n - 1), -1, dtype=np.int16)
        met[0, 0] = top
        begin = self.down[-1] + self.f[-1]
        more = self.d * self.f[0] * np.arange(1, n)
        numbers = np.concatenate([[0.0, begin, begin, begin], more])[None]
        # over states given up at t: the minimum start of B(i, t), ..., B(i, t+n-1), F(i, t+n)
        left = np.full((self.last + 2, n + 1), np.inf)
        least = np.full(self.last + 1, np.inf)
        given_up, cell, exact = self.ceiling, CELL * self.ceiling, True
        for t in range(self.last + 1):
            least[t] = float(numbers[:, 3].min(initial=np.inf)) + self.up[0]
            for j in range(n - 1 if t < self.last else 0):
                if budget():
                    return min(given_up, float(numbers[:, 0].min(initial=np.inf)))
                met, numbers = _meet(
                    *(met, numbers, j, self.d, self.f, self.b, self.up, self.down),
                    *(self.turn, self.trip, self.done, t, self.rest_f, self.rest_b),
                    *(self.ceiling, left[t + (j == n - 2)]),
                )
                budget.work.spend(FOLLOWER * len(met) * n)
                cell = max(cell / 8, CELL * self.ceiling)
                met, numbers, cell = _thin(met, numbers, top + 2, cell, states, self.ceiling)
                exact = exact and cell <= CELL * self.ceiling
                if len(met) > states:
                    rank = np.argsort(numbers[:, 0], kind="stable")
                    over, keep = rank[states:], rank[:states]
                    given_up = min(given_up, float(numbers[over[0], 0]))
                    _leave_out(numbers[over], j, self.up[0], self.turn, self.trip, left, t)
                    met, numbers, exact = met[keep], numbers[keep], False
        self.exact = exact
        self._improve_between(least, left)
        return min(given_up, float(numbers[:, 0].min(initial=np.inf)))

    def _improve_rest(self) -> None:
        f, b, last = self.rest_f, self.rest_b, self.last
        for t in range(last, -1, -1):
            if t < last:
                b[t] = max(b[t], self.d * self.b[0] + b[t + 1])
            if t + self.n <= last:
                b[t] = max(b[t], self.turn + f[t + self.n])
            f[t] = max(f[t], self.trip + b[t], self.between[last - t] + b[last])

    def _improve_between(self, least: FloatArray, left: FloatArray) -> None:
        """Raise each entry of E (``between``) to the minimum that all states imply.

        ``least[t]``: the minimum start of B(i, t) in the states that were kept. ``left[t]``: what
        the states that were given up at t imply, as in :func:`_lessen`.
        """
        for m in range(self.last, -1, -1):  # later entries need the old earlier ones
            value = min([least[m], *(left[m - k, k] for k in range(min(self.n, m + 1)))])
            if m >= self.n:
                further = left[: m - self.n + 1, self.n] + self.between[m - self.n :: -1]
                value = min(value, float(further.min()))
            self.between[m] = max(self.between[m], value)


@kernel
def _meet(  # noqa: PLR0917
    met: npt.NDArray[np.int16],
    numbers: FloatArray,
    j: int,  # t meets t + 1 + j
    d: int,
    f: FloatArray,
    b: FloatArray,
    up: FloatArray,
    down: FloatArray,
    turn: float,
    trip: float,
    done: float,
    t: int,
    rest_f: FloatArray,
    rest_b: FloatArray,
    ceiling: float,
    left: FloatArray,  # (n + 1,), lowered to what the dropped states say
) -> _States:
    """Extend each state by each choice of the stage where microbatch t meets t + 1 + j.

    States are those of :class:`CrossingsSearch`. Returns ``met`` and ``numbers`` of the new states,
    without the states whose ``low`` (the bound on the span of all schedules through a state)
    reaches ``ceiling``.
    """
    n, top, last = met.shape[1] + 1, len(f) - 1, len(rest_b) - 1
    size = 0
    for s in range(len(met)):
        before = met[s, 1 + j] if j < n - 2 else -1
        size += max(0, met[s, 0] - before + 1)
    next_met = np.empty((size, n - 1), dtype=np.int16)
    found = np.empty((size, n + 3))
    size = 0
    for s in range(len(met)):
        before = met[s, 1 + j] if j < n - 2 else -1
        previous, v = met[s, 0], numbers[s, 4 + j]
        for at in range(before, previous + 1):
            low, y, now = numbers[s, 0], numbers[s, 1], found[size]
            now[:] = numbers[s]
            above = y if at < previous else numbers[s, 2]
            later = v
            if at < top:
                later = max(v, above + up[at + 1] + b[at + 1] - down[at + 1])
            if at > before:
                y = max(y, v + down[at] + f[at] - up[at])
            low = max(low, done + y + up[0] + rest_b[t])
            if j == 0:
                turned = (y if at == top else numbers[s, 3]) + d * b[top]
                now[3] = max(turned, later + down[top] + f[top])
                low = max(low, done + now[3] + up[0] + rest_b[t + 1])
            else:
                now[3 + j] = later
                if t + 1 + j <= last:
                    low = max(low, done + later + trip + rest_b[t + 1 + j])
            if j == n - 2:
                now[2 + n] = max(y + up[0] + turn, v + d * f[0])  # v belongs to F(i, t+n-1)
                if t + n <= last:
                    low = max(low, done + now[2 + n] + rest_f[t + n])
                now[1] = now[2] = now[3]
            else:
                now[1], now[2] = y, above
            now[0] = low
            if low >= ceiling:
                _lessen(left, now, j, up[0], turn, trip)
                continue
            next_met[size] = met[s]
            next_met[size, 0] = top if j == n - 2 else at
            if j > 0:
                next_met[size, j] = at
            size += 1
    return next_met[:size].copy(), found[:size].copy()


@kernel
def _lessen(  # noqa: PLR0917
    left: FloatArray, numbers: FloatArray, j: int, up: float, turn: float, trip: float
) -> None:
    """Lower the entries of ``left`` to the values that one state, which is given up, implies.

    ``left``: the minimum, over all states given up, of the starts of B(i, t), ..., B(i, t+n-1) and
    F(i, t+n), shape (n + 1,). ``numbers``: those of the state. ``j``: the last meeting in the state
    is that of t with t + 1 + j; if j is n - 2, t has met all others, and the numbers are those of t
    + 1.
    """
    n = len(left) - 1
    if j == n - 2:
        left[0] = min(left[0], numbers[3] + up)
        for k in range(1, n):
            left[k] = min(left[k], numbers[3 + k] + trip)
        left[n] = min(left[n], numbers[3] + up + turn)
        return
    left[0] = min(left[0], numbers[1] + up)
    left[1] = min(left[1], numbers[3] + up)
    for k in range(2, n):
        # microbatches met already have the numbers of t + 1, the others those of t
        left[k] = min(left[k], numbers[2 + k if k <= j + 1 else 3 + k] + trip)
    left[n] = min(left[n], numbers[1] + up + turn)


@kernel
def _leave_out(  # noqa: PLR0917
    numbers: FloatArray,
    j: int,
    up: float,
    turn: float,
    trip: float,
    left: FloatArray,  # (T + 2, n + 1)
    t: int,
) -> None:
    n = left.shape[1] - 1
    for s in range(len(numbers)):
        _lessen(left[t + 1 if j == n - 2 else t], numbers[s], j, up, turn, trip)


def _thin(  # noqa: PLR0917
    met: npt.NDArray[np.int16],
    numbers: FloatArray,
    base: int,
    cell: float,
    states: int,
    ceiling: float,
) -> tuple[npt.NDArray[np.int16], FloatArray, float]:
    """Remove dominated states, and merge similar ones until at most ``states`` are left.

    A state is a row of ``met`` with its row of ``numbers`` (:class:`CrossingsSearch`). States with
    equal ``met`` are merged if their numbers lie in one cell of a grid. The cells have size
    ``cell`` at first; it is doubled while too many states are left, up to about COARSEST times
    ``ceiling``, so that the result can have more than ``states``. Returns ``met``, ``numbers`` and
    the last size of a cell.
    """
    while len(met) > 1:
        key = _keys(met, base)
        if len(met) > CROWD * states or cell > CELL * ceiling:
            first, numbers = _merged(key, numbers, cell)
            met, key = met[first], key[first]
        if len(met) <= CROWD * states:
            order = np.lexsort((numbers[:, 1:].sum(axis=1), key))
            order = order[_undominated(order, key, numbers)]
            met, numbers = met[order], numbers[order]
        if len(met) <= states or cell > COARSEST * ceiling:
            break
        cell *= 2
    return met, numbers, cell


@kernel
def _keys(met: npt.NDArray[np.int16], base: int) -> IntArray:
    keys = np.zeros(len(met), dtype=np.int64)
    for i in range(len(met)):
        for k in range(met.shape[1]):
            keys[i] = keys[i] * base + met[i, k] + 1
    return keys


@kernel
def _merged(key: IntArray, numbers: FloatArray, cell: float) -> tuple[IntArray, FloatArray]:
    """Merge states with equal ``key`` whose numbers are in one cell of a grid.

    A merged state has the minimum of each number. ``key``: an integer that encodes the meetings of
    each state. ``cell``: the size of a cell. Returns the index of the first state of each group,
    and the numbers of the merged states.
    """
    codes = np.empty(len(key), dtype=np.uint64)
    for i in range(len(key)):
        code = np.uint64(key[i]) * np.uint64(0x9E3779B97F4A7C15)
        for k in range(1, numbers.shape[1]):
            code = (code ^ np.uint64(np.int64(numbers[i, k] / cell))) * np.uint64(
                0xBF58476D1CE4E5B9
            )
            code ^= code >> np.uint64(29)
        codes[i] = code
    order = np.argsort(codes)
    first, least, size = np.empty(len(key), dtype=np.int64), np.empty_like(numbers), 0
    for q in range(len(order)):
        i = order[q]
        # states with equal code and key are merged even if they are not close, which is still valid
        if q > 0 and codes[order[q - 1]] == codes[i] and key[first[size - 1]] == key[i]:
            least[size - 1] = np.minimum(least[size - 1], numbers[i])
        else:
            first[size], least[size] = i, numbers[i]
            size += 1
    return first[:size].copy(), least[:size].copy()


@kernel
def _undominated(order: IntArray, key: IntArray, numbers: FloatArray) -> npt.NDArray[np.bool_]:
    """A mask, in the order of ``order``: false for states that an earlier state dominates.

    A state dominates another one if both have the same key and none of its numbers, except ``low``,
    is larger. ``order``: the indices of the states, sorted by key, then by the sum of their
    numbers. A dominating state takes over the ``low`` of the dominated one if that is lower.
    """
    keep = np.ones(len(order), dtype=np.bool_)
    begin = 0
    for i in range(len(order)):
        if key[order[i]] != key[order[begin]]:
            begin = i
        for j in range(begin, i):
            if keep[j]:
                above = True
                for k in range(1, numbers.shape[1]):
                    if numbers[order[i], k] < numbers[order[j], k]:
                        above = False
                        break
                if above:
                    keep[i] = False  # no matter its low, which depends on its past
                    numbers[order[j], 0] = min(numbers[order[j], 0], numbers[order[i], 0])
                    break
    return keep
