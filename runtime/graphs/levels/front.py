"""The sets of values that a stage may keep from F to R: the lower convex hull of bytes held against
time to compute again.

Of each value of the forward two questions, each a node of a network (a: is it there after R? r:
does R compute it?) and what the answers cost::

    source ──▶ a(v)          R has to give v
    a(v) ──bytes(v)──▶ r(v)  there and not computed: it was kept
    r(v) ──▶ a(u)            computed from u, which is there as well
    r(v) ──time(v)──▶ sink   computed

With times in bytes at some price, a minimum cut is the set of values to keep that makes bytes plus
priced time least: a point of the hull, and exact. Of two points of it, the cut at the price at
which both cost the same is the point furthest below the line between them. A planner mixes levels
over microbatches, so points above the hull would buy nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from ..cut import Cut, made_of_parameters
from ..joint import UPDATES, Role
from ..liveness import nbytes, root_of
from ..rewrites import needed
from .call_costs import call_cost

SCALE = 1 << 24
"""What bytes and times are counted in: this part of their sums."""
NEVER = 1 << 56
"""More than all else of a network costs."""


@dataclass(frozen=True, slots=True)
class KeptValues:
    """One point of a front: the values that are ``kept``, in the graph's order, in so many bytes
    ``held``, and the counted ``time`` (:mod:`.call_costs`) of what is computed again."""

    kept: tuple[fx.Node, ...]
    held: int
    time: int


class Front:
    """The choices for a stage of which R has to give the values ``wanted``.

    Parameters, buffers and the stage's inputs are there in R, but for those that F changes.
    """

    def __init__(self, cut: Cut, wanted: Sequence[fx.Node]) -> None:
        self._wanted = wanted
        changed = {
            (Role.BUFFER if v.role is Role.BUFFER_UPDATE else Role.INPUT, v.key)
            for _, v in cut.joint.of(*UPDATES)
        }
        values = cut.joint.inputs.items()
        self._there = {n for n, v in values if (v.role, v.key) not in changed}
        within = needed(wanted)
        self._nodes = [n for n in cut.joint.graph.nodes if n in within and n not in self._there]
        self._times = {node: self._time(node) for node in self._nodes}
        remade = made_of_parameters(cut.joint)
        self._sizes = {n: None if n in remade else _size(n) for n in self._nodes}
        self._known: dict[tuple[int, ...], KeptValues] = {}

    @staticmethod
    def _time(node: fx.Node) -> int | None:
        return None if node.op == "placeholder" else call_cost(node)

    @cached_property
    def whole(self) -> int:
        """Bytes that are held where no call is computed again."""
        return self._ends[0].held

    @cached_property
    def total(self) -> int:
        """The counted time of all calls that may be computed again."""
        return sum(filter(None, self._times.values()))

    @cached_property
    def _ends(self) -> tuple[KeptValues, KeptValues]:
        """The choices that take least time, and hold least."""
        return self._cut(1, SCALE), self._cut(SCALE, 1)

    def within(self, percent: int) -> KeptValues:
        """The choice that takes least time of those that hold at most so many percent of what is
        held where nothing is computed again; the one that holds least where none does."""
        more, less = self._ends
        while less.held < more.held:
            between = self._below(more, less)
            if between is None:
                break
            if between.held * 100 <= percent * self.whole:
                less = between
            else:
                more = between
        return less

    def shares(self, count: int) -> list[int]:
        """Percentages for :meth:`within`, at most ``count``, the largest first: those that bring
        the line through their choices, from all held to least held, nearest to the hull."""
        more, less = self._ends
        lines, found = [(more, less)], list[KeptValues]()
        while len(found) < count:
            gaps = [(self._gap(a, b), i) for i, (a, b) in enumerate(lines)]
            gap, i = max(gaps, key=lambda pair: (pair[0], -pair[1]), default=(0.0, 0))
            a, b = lines[i] if lines else (more, less)
            between = self._below(a, b)
            if gap <= 0.0 or between is None:
                break
            found.append(between)
            lines[i : i + 1] = [(a, between), (between, b)]
        kept = [*found, less] if less.held and len(found) < count else found
        shares = {math.ceil(100 * choice.held / self.whole) for choice in kept if self.whole}
        return sorted(shares - {0, 100}, reverse=True)

    def _gap(self, a: KeptValues, b: KeptValues) -> float:
        """The area between the line from ``a`` to ``b`` and the choice furthest below it, in that
        of the whole front."""
        between = self._below(a, b)
        if between is None:
            return 0.0
        freed, more = a.held - between.held, between.time - a.time
        area = freed * (b.time - a.time) - more * (a.held - b.held)
        return area / max(1, self.whole * self.total)

    def _below(self, a: KeptValues, b: KeptValues) -> KeptValues | None:
        """The choice furthest below the line from ``a`` to ``b``, which holds less; None where none
        is."""
        bytes_scale, time_scale = self._scales
        freed = round((a.held - b.held) * bytes_scale)
        more = round((b.time - a.time) * time_scale)
        if freed <= 0 or more <= 0:
            return None
        found = self._cut(more, freed)
        between = b.held < found.held < a.held and a.time < found.time < b.time
        area = (a.held - found.held) * (b.time - a.time)
        return found if between and area > (found.time - a.time) * (a.held - b.held) else None

    @cached_property
    def _scales(self) -> tuple[float, float]:
        held = sum(filter(None, self._sizes.values()))
        return SCALE / max(1, held), SCALE / max(1, self.total)

    def _cut(self, *weights: int) -> KeptValues:
        """The choice for which bytes and time, weighed so, are least."""
        if weights not in self._known:
            self._known[weights] = self._least(*weights)
        return self._known[weights]

    def _least(self, of_bytes: int, of_time: int) -> KeptValues:
        from ortools.graph.python.max_flow import SimpleMaxFlow

        flow = SimpleMaxFlow()
        place = {node: 2 * i for i, node in enumerate(self._nodes)}
        source, sink = 2 * len(place), 2 * len(place) + 1
        scales = self._scales
        for node, there in place.items():
            capacity = _capacity(self._sizes[node], scales[0], of_bytes)
            flow.add_arc_with_capacity(there, there + 1, capacity)
            capacity = _capacity(self._times[node], scales[1], of_time)
            flow.add_arc_with_capacity(there + 1, sink, capacity)
            for needs in node.all_input_nodes:
                if needs in place:
                    flow.add_arc_with_capacity(there + 1, place[needs], NEVER)
        for node in self._wanted:
            if node in place:
                flow.add_arc_with_capacity(source, place[node], NEVER)
        flow.solve(source, sink)
        return self._choice({*flow.get_source_side_min_cut()}, place.__getitem__)

    def _choice(self, side: Collection[int], place: Callable[[fx.Node], int]) -> KeptValues:
        there = [node for node in self._nodes if place(node) in side]
        kept = tuple(node for node in there if place(node) + 1 not in side)
        again = [self._times[node] for node in there if place(node) + 1 in side]
        return KeptValues(kept, nbytes(kept), sum(time or 0 for time in again))


def _size(node: fx.Node) -> int | None:
    """The bytes of a value that can be kept; None of what is a part of another, or several."""
    value = node.meta.get("val")
    if root_of(node) is not node or not hasattr(value, "untyped_storage"):
        return None
    return nbytes([node])


def _capacity(amount: int | None, scale: float, weight: int) -> int:
    if amount is None:
        return NEVER
    return max(1, round(amount * scale)) * weight if amount else 0
