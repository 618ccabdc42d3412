"""Argument ``moments`` of a certificate: difference constraints with a cycle of positive length.

The argument assumes that a schedule costs at most the bound, and derives inequalities between
moments of the schedule that contradict each other. Stage s has its own rank. Its moments
are: S, its first op starts; y, its first B starts; t, its last F starts; V, its last B ends; E, its
last op ends. ``start`` is S of stage 0. Iy, It and IV are S plus the rank's idle time until y, t
and V. An arc from u to v with length d is the inequality v - u >= d. The arcs are:

- From S to S, and from t to t, of the next stage: T_F plus the delay. From y and V of the next
  stage to y and V of this stage: the delay plus T_B, of the next stage for y, of this stage for V.
  On the last stage, from S to y: T_F; from t to V: T_F + T_B.
- As idle time only grows: from S to Iy to IV and from S to It to IV: 0. From IV to E: all work of
  the rank. From Iy to It: 0, if memory cannot hold all M microbatches.
- From V to E: T_W; from S to t: (M - 1) T_F; from y to V: M T_B; from y to t: T_B, if memory cannot
  hold all M microbatches.
- From S to E: the minimum time of the argument ``slots``.
- From E to S (from E to ``start`` if the makespan is bounded): minus the cost to refute.

The work that a rank has done by a moment (such as y - Iy) has only a few possible values. By y: n
F's, all of which are in memory. By t: all F's but one, M - a B's and M - p W's, where a M_B's and p
- a M_W's are in memory. By V: all F's and B's and M - h W's, where one M_B and h - 1 M_W's are in
memory while the last B runs. The length of a path between the two moments (Iy to y or y to Iy)
bounds the work from below or above, and excludes the values beyond this bound. From t to V, at
least T_F + a T_B pass, with the smallest possible a.

If memory holds all M microbatches, there are two cases: either the first B starts before the last
F, so that n < M; or all F's come first, so that n = M and M - 1 F's have run by t. A path of
positive length between Iy and It, or the excluded values, refute one of the cases.
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
    """Raise NotProvenError unless ``paths`` prove that no schedule costs less than ``bound`` (ms).

    ``paths``: lists of names of moments, such as ``Iy0``. Each path excludes values of work or a
    case; the last one must be a cycle of positive length.
    """
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

    ``arcs``: the length of each arc, by the names of its two moments. ``values``: for each of the
    moments y, t and V, the values of the rank's work by then that are not excluded, as pairs of
    this work and the minimum time from the moment to V.
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
        """Keep only ``values`` for ``moment`` in :attr:`values`, and add the arcs that follow.

        If only one of the two cases of the module's docstring is left, the arcs of this case are
        added, too. Raises _RefutedError if ``values`` is empty.
        """
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
        """Add the arcs that follow if only one of two cases is possible on stage ``s``.

        If ``apart``, it is the case in which the first B starts before the last F; otherwise, the
        case in which all F's come first. Values of the rank's work that contradict the case are
        excluded.
        """
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
    """The inequalities contradict each other, so no schedule has the assumed cost."""
