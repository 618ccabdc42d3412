"""Argument ``moments`` of a certificate: paths between moments, and a cycle that cannot be.

The moments of stage s, which has its own rank, are: S its first op starts, y its first B starts, t
its last F starts, V its last B ends, E its last op ends; ``start`` is S of stage 0. Iy, It and IV
are the rank's idle time by then. An arc from u to v says v - u >= its length:

- S to S and t to t of the next stage: T_F and the delay; y and V of the next stage to y and V: the
  delay and T_B of the later stage for y, of the earlier one for V. On the last stage S to y takes
  T_F, t to V takes T_F + T_B.
- Idle time grows: S, Iy, IV and S, It, IV; from IV to E it takes the rank's whole work. Iy is
  before It if memory cannot hold all M microbatches.
- V to E takes T_W, S to t (M - 1) T_F, y to V M T_B, and y to t T_B if memory cannot hold all M.
- S to E: the argument ``slots``.
- E to S (makespan: to ``start``): minus the cost that is refuted.

What a rank has run by a moment, which is the time minus the idle time, is one of a few values. By
y: n F's, which are all in memory. By t: all but one F, and M - a B's and M - p W's, where a M_B's
and p - a M_W's are in memory. By V: all F's and B's and M - h W's, where one M_B and h - 1 M_W's
are in memory as the last B runs. A path between the two bounds this from below or above; the bound
is rounded to the nearest value. Between t and V, T_F and the a T_B of any possible value pass.

If memory holds all M, either the first B starts before the last F does, and n < M; or all F's come
first: n = M, and by t M - 1 F's have run. A path between Iy and It, or a bound, refutes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from ..schedule_facts import Facts
from .least import NotProvenError
from .linear import LinearFacts
from .slots import span

Values = list[tuple[int, int]]


def check_moments(facts: Facts, bound: Fraction, paths: Sequence[Sequence[str]]) -> None:
    """Raise NotProvenError unless ``paths`` prove that no schedule costs less than ``bound``."""
    problems = []
    for of in LinearFacts.each(facts):
        try:
            MomentArcs(of, bound / of.unit).check(paths)
        except NotProvenError as error:
            problems.append(error)
        else:
            return
    raise problems[0]


class MomentArcs:
    """The inequalities between moments in schedules that cost at most ``cost``, in whole units.

    ``arcs``: the length by the names of both moments. ``values``: by moment, pairs of what the rank
    has run, if that is still possible, and the least time from there to V.
    """

    def __init__(self, of: LinearFacts, cost: Fraction) -> None:
        self._of, self._m = of, of.microbatches
        self.arcs: dict[tuple[str, str], Fraction] = {}
        self.values: dict[str, Values] = {}
        for s in range(len(of.stages)):
            self._add_stage(s)
            self._arc(f"E{s}", "start" if of.makespan else f"S{s}", -cost)
        for s in range(len(of.stages) - 1):
            self._add_hop(s)
        last, own = len(of.stages) - 1, of.stages[-1]
        self._arc(f"S{last}", f"y{last}", own.f)
        self._arc(f"t{last}", f"V{last}", own.f + own.b)
        self._arc("start", "S0", 0)
        self._arc("S0", "start", 0)

    def _arc(self, before: str, after: str, length: Fraction | int) -> None:
        old = self.arcs.get((before, after))
        if old is None or length > old:
            self.arcs[before, after] = Fraction(length)

    def _add_hop(self, s: int) -> None:
        of, here, later = self._of, self._of.stages[s], self._of.stages[s + 1]
        for moment in "St":
            self._arc(f"{moment}{s}", f"{moment}{s + 1}", here.f + of.down[s])
        self._arc(f"y{s + 1}", f"y{s}", later.b + of.up[s])
        self._arc(f"V{s + 1}", f"V{s}", here.b + of.up[s])

    def _add_stage(self, s: int) -> None:
        m, own = self._m, self._of.stages[s]
        f, b, w = own.f, own.b, own.w
        for before, after in ("S", "Iy"), ("S", "It"), ("Iy", "IV"), ("It", "IV"):
            self._arc(f"{before}{s}", f"{after}{s}", 0)
        self._arc(f"IV{s}", f"E{s}", m * (f + b + w))
        self._arc(f"V{s}", f"E{s}", w)
        self._arc(f"S{s}", f"t{s}", (m - 1) * f)
        self._arc(f"y{s}", f"V{s}", m * b)
        if own.fits < m:
            self._arc(f"Iy{s}", f"It{s}", 0)
            self._arc(f"y{s}", f"t{s}", b)
        counts = (
            (a, p) for a in range(1, own.fits + 1) for p in range(a, min(m, a + own.waiting[a]) + 1)
        )
        by_t = [((m - 1) * f + (m - a) * b + (m - p) * w, f + a * b) for a, p in counts]
        late = range(1, min(m, 1 + own.waiting[1]) + 1)
        self._limit(f"y{s}", [(n * f, 0) for n in range(1, own.fits + 1)])
        self._limit(f"t{s}", by_t)
        self._limit(f"V{s}", [(m * (f + b) + (m - h) * w, 0) for h in late])

    def _limit(self, moment: str, values: Values) -> None:
        """Keep only ``values`` of a moment, and the arcs and the choice that follow from them."""
        if not values:
            raise _RefutedError
        self.values[moment] = values
        self._arc(f"I{moment}", moment, min(values)[0])
        self._arc(moment, f"I{moment}", -max(values)[0])
        if moment[0] == "t":
            self._arc(moment, f"V{moment[1:]}", min(pay for _, pay in values))
        s = int(moment[1:])
        own = self._of.stages[s]
        if own.fits == self._m and own.f > 0 and f"t{s}" in self.values:
            apart = (self._m - 1) * own.f
            if min(self.values[f"y{s}"])[0] > apart:
                self._order(s, apart=False)
            elif max(self.values[f"y{s}"])[0] <= apart or min(self.values[f"t{s}"])[0] > apart:
                self._order(s, apart=True)

    def _order(self, s: int, *, apart: bool) -> None:
        """The first B of a stage starts before its last F if ``apart``, or else after it."""
        order = (f"Iy{s}", f"It{s}") if apart else (f"It{s}", f"Iy{s}")
        if order in self.arcs:
            return
        self._arc(*order, 0)
        most = (self._m - 1) * self._of.stages[s].f
        self._limit(f"y{s}", [v for v in self.values[f"y{s}"] if (v[0] <= most) == apart])
        if not apart:
            self._limit(f"t{s}", [v for v in self.values[f"t{s}"] if v[0] <= most])

    def check(self, paths: Sequence[Sequence[str]]) -> None:
        try:
            for k, path in enumerate(paths):
                self._check(path, f"argument: paths[{k}]")
        except _RefutedError:
            return
        raise NotProvenError("argument: paths: expected a cycle of positive length at the end")

    def _check(self, path: Sequence[str], where: str) -> None:
        length = sum((self._length(*arc, where) for arc in pairwise(path)), Fraction(0))
        first, last = (path[0], path[-1]) if path else ("", "")
        if first == last and length > 0:
            raise _RefutedError
        if first == f"I{last}" and last in self.values:
            self._limit(last, [v for v in self.values[last] if v[0] >= length])
        elif last == f"I{first}" and first in self.values:
            self._limit(first, [v for v in self.values[first] if v[0] <= -length])
        elif {first[:2], last[:2]} == {"Iy", "It"} and first[2:] == last[2:] and length > 0:
            s = int(first[2:])
            if self._of.stages[s].fits == self._m:
                self._order(s, apart=first[:2] == "Iy")
        else:
            raise NotProvenError(f"{where}: expected both ends at one moment, or a positive length")

    def _length(self, before: str, after: str, where: str) -> Fraction:
        if before[0] == "S" and after == f"E{before[1:]}" and before in self._stage_names:
            self._arc(before, after, span(self._of, int(before[1:])))
        if (before, after) not in self.arcs:
            raise NotProvenError(f"{where}: no inequality from {before!r} to {after!r}")
        return self.arcs[before, after]

    @property
    def _stage_names(self) -> set[str]:
        return {f"S{s}" for s in range(len(self._of.stages))}


class _RefutedError(Exception):
    """No schedule has the cost."""
