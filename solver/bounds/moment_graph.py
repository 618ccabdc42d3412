"""Refutes costs by positive cycles in a graph of moments, a system of difference constraints.

To *refute* a cost is to prove that no schedule costs at most that.

A *moment* is a time at which something happens on a rank, such as the start of its first B. Each
has two nodes: the time T itself, and I, the time that the rank has been idle by then. T - I is the
work that the rank has done by the moment. An *arc* from node u to node v states that v - u >= its
length. A *link* between the two nodes of a moment states that T - I is one of a finite set of
values. A cycle of positive length is a contradiction.

The longest paths between the nodes of a link bound T - I from below and from above. The lower bound
is rounded up and the upper bound down to a value in the set, and the rounded bounds become the
lengths of arcs. This is repeated until nothing changes or a cycle is positive. If a link's set is
an interval, its bounds are not rounded.

A *pay* is an arc whose length depends on the work T - I of a link, for example the time of the B's
that are left after it: its length is the minimum over all values within the link's bounds. A
*choice* has two sides, each a set of arcs; all arcs of at least one side hold. If an arc of one
side would close a positive cycle, that side is refuted, and the arcs of the other side are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray

from ..core.stopping import Budget

SLACK = 1e-12  # of a cost: differences below this are rounding errors
CLOSE = 1e-10  # relative difference of the limits at which bisection ends
ARC = 100  # work of :meth:`Closing.closed` per arc, in simulated ops
MOST_STEPS = 100_000  # of a refutation

Arc = tuple[str, str, float]


class Values(NamedTuple):
    """The amounts of work that a rank can have done by a moment, such as the start of its first B.

    ``times``: the amounts, as times in ascending order, shape (n,). ``pays``: for each amount, the
    length that it gives to the moment's pay (an arc of the graph whose length depends on the
    amount), shape (n,); all 0 if the moment has no pay. ``interval``: whether all numbers between
    the first and the last amount are possible as well.
    """

    times: FloatArray
    pays: FloatArray
    interval: bool = False

    @classmethod
    def between(cls, low: float, high: float) -> Values:
        """The interval of all amounts from ``low`` to ``high``, with pays of 0."""
        return cls(np.array([low, max(low, high)]), np.zeros(2), interval=True)

    def plus(self, time: float, pay: float = 0.0) -> Values:
        """A copy with ``time`` added to each amount, and ``pay`` added to each pay."""
        return Values(self.times + time, self.pays + pay, self.interval)

    def before(self, end: float) -> Values:
        """The amounts with each t replaced by ``end`` - t, in ascending order; pays are kept."""
        return Values(end - self.times[::-1], self.pays[::-1], self.interval)


class Lemma(NamedTuple):
    """A step of a refutation: because of a longest path, the length of some arc increases.

    ``path``: the nodes of the path in order. ``arc``: the index of the arc whose length increases
    to ``length``. ``lengths[k]``: the length of the arc from ``path[k]`` to ``path[k + 1]``; the
    last entry is the length of the arc from the last node back to the first, or -inf if there is no
    such arc.

    In the last step of a refutation ``arc`` is -1, and ``path`` is a positive cycle. If the arc is
    a pay, whose length follows from the bounds of its link, ``path`` is empty.
    """

    path: list[int]
    lengths: list[float]
    arc: int = -1
    length: float = 0.0


class MomentGraph:
    """A graph of moments under construction.

    There are nodes for the times of moments, and nodes for the time that a rank has been idle by a
    moment; a node is added when its name is first used. An arc states that the difference of two
    nodes is at least its length.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._arcs: list[tuple[int, int, float]] = []
        self._links: list[tuple[int, ...]] = []
        self._values: list[Values] = []
        self._choices: list[tuple[int, int, int]] = []
        self._options: list[int] = []
        self._active: list[float] = []
        self._costs: list[int] = []

    def arc(self, tail: str, head: str, length: float) -> int:
        """Add an arc, which states that ``head`` - ``tail`` >= ``length``, and return its index."""
        ends = [self.names.setdefault(name, len(self.names)) for name in (tail, head)]
        self._arcs.append((ends[0], ends[1], length))
        return len(self._arcs) - 1

    def cost(self, end: str, start: str) -> None:
        """Add the constraint that the node ``end`` minus the node ``start`` is at most the cost."""
        self._costs.append(self.arc(end, start, 0.0))

    def link(self, time: str, idle: str, values: Values, pay: Sequence[str] = ()) -> None:
        """Add a link, which states that ``time`` - ``idle`` is one of ``values``.

        ``time``, ``idle``: the two nodes of a moment. ``pay``: the tail and the head of the link's
        pay, an arc whose length is the pay that ``values`` assigns to ``time`` - ``idle``; empty if
        the link has no pay.
        """
        low = self.arc(idle, time, float(values.times[0]))
        self.arc(time, idle, -float(values.times[-1]))
        paid = self.arc(pay[0], pay[1], float(values.pays.min())) if pay else -1
        if values.interval:
            return
        at = self._links[-1][5] if self._links else 0
        ends = self.names[idle], self.names[time]
        self._links.append((*ends, low, paid, at, at + len(values.times)))
        self._values.append(values)

    def lower(self, time: str) -> int:
        """The index of the arc that states the lower bound on the work done by a moment.

        ``time``: the name of the node for the time of the moment, which must have a link.
        """
        return next(link[2] for link in self._links if link[1] == self.names[time])

    def choice(self, one: Sequence[Arc], other: Sequence[Arc]) -> None:
        """Add a choice, which states that all arcs of ``one`` or all arcs of ``other`` hold."""
        begin, middle = len(self._options), len(self._options) + len(one)
        for tail, head, length in (*one, *other):
            self._options.append(self.arc(tail, head, -np.inf))
            self._active.append(length)
        self._choices.append((begin, middle, len(self._options)))

    def closing(self) -> Closing:
        """Return the finished graph as arrays, in an object whose methods refute costs."""
        tail, head, length = (np.array(column) for column in zip(*self._arcs, strict=True))
        return Closing(
            len(self.names),
            tail,
            head,
            length,
            np.array(self._costs),
            np.array(self._links, dtype=np.int64).reshape(-1, 6),
            np.concatenate([each.times for each in self._values]),
            np.concatenate([each.pays for each in self._values]),
            np.array(self._choices, dtype=np.int64).reshape(-1, 3),
            np.array(self._options, dtype=np.int64),
            np.array(self._active),
        )


class Closing(NamedTuple):
    """A finished graph of moments as arrays: A arcs, L links with N values, C choices with O arcs.

    Nodes and arcs are numbered from 0; ``nodes`` is the number of nodes. ``tail``, ``head``: the
    nodes of each arc, shape (A,); ``length``: the length of each arc, shape (A,). ``costs``: the
    indices of the arcs whose length is minus the cost. ``links``: a row for each link, shape
    (L, 6): the node of the idle time, the node of the time, the index of the arc with the lower
    bound (the arc with the upper bound follows it), the index of the pay's arc or -1, and the begin
    and end (exclusive) of the link's entries in ``values``.

    ``values``, ``pays``: the values and pays of all links, link after link, shape (N,).
    ``choices``: a row for each choice, shape (C, 3): the begin of the first side's entries in
    ``options``, the begin of the second side's entries, and their end (exclusive). ``options``: the
    indices of the arcs that belong to sides, shape (O,); ``active``: the length of each of these
    arcs if its side holds, shape (O,).
    """

    nodes: int
    tail: IntArray
    head: IntArray
    length: FloatArray
    costs: IntArray
    links: IntArray
    values: FloatArray
    pays: FloatArray
    choices: IntArray
    options: IntArray
    active: FloatArray

    def least(
        self, low: float, branches: int = 0, most: float = np.inf, budget: Budget | None = None
    ) -> float:
        """A lower bound on the cost: the minimum cost that cannot be refuted, by bisection.

        The result may be below that minimum by a relative :data:`CLOSE`; if ``budget`` is used up,
        it is the highest cost refuted so far. ``low``: a known lower bound, which is returned if
        the bisection cannot raise it. ``most``: the cost of a schedule, or inf; the result is at
        most that. ``branches``: the maximum number of nodes of the search tree over open choices
        that is built for each cost tried; 0 for no tree.
        """
        budget, high = budget or Budget(), min(2 * low or 1.0, most)
        if self.closed(low * (1 + CLOSE), None, branches) is not None:
            return low
        while (length := self.closed(high, None, branches)) is None:
            if high == most:
                return most
            low, high = high, min(2 * high, most)
        while high - low > CLOSE * high and not budget():
            middle = (low + high) / 2
            found = self.closed(middle, length, branches)
            budget.work.spend(ARC * len(self.tail) * (1 + branches))
            if found is None:
                low = middle
            else:
                high, length = middle, found
        return low

    def closed(
        self, cost: float, length: FloatArray | None = None, branches: int = 0
    ) -> FloatArray | None:
        """Try to refute ``cost``. Returns None if it is refuted, otherwise the final arc lengths.

        The final lengths, shape (A,), hold in all schedules that cost at most ``cost``. ``length``:
        the lengths to begin with, which a call for a higher cost has returned; None for the lengths
        of the graph. ``branches``: the maximum number of nodes of a search tree over the choices
        that are still open. The tree can refute the cost, but does not change the lengths.
        """
        whole = self._state(cost, length)
        if _close(whole) >= 0:
            return None
        open_ = [whole.length]
        for _ in range(branches):
            if not open_:
                return None
            first = open_.pop()
            sides = self._undecided(first)
            for begin, end in sides:
                part = self._state(cost, first)
                part.length[self.options[begin:end]] = self.active[begin:end]
                if _close(part) < 0:
                    open_.append(part.length)
            if not sides:
                break
        return whole.length

    def _state(self, cost: float, length: FloatArray | None = None, log: int = 0) -> _State:
        found = (self.length if length is None else length).copy()
        found[self.costs] = -cost
        path, via = np.empty(self.nodes), np.full(self.nodes, -1)
        return _State(
            self, found, SLACK * cost, path, via, np.empty((log, 4)), np.zeros(1, dtype=np.int64)
        )

    def _undecided(self, length: FloatArray) -> list[tuple[int, int]]:
        """The two sides of the first open choice; an empty list if no choice is open.

        A choice is open while the arcs of neither side have been added. Each side is a range
        (begin, end) of indices of ``options``, end exclusive. ``length``: the current length of
        each arc, shape (A,).
        """
        for begin, middle, end in self.choices.tolist():
            if np.isinf(length[self.options[begin:end]]).all():
                return [(begin, middle), (middle, end)]
        return []

    def cycle(self, cost: float) -> Lemma | None:
        """A positive cycle that refutes ``cost``, or None if ``cost`` is not refuted.

        It is a cycle in the graph whose links have been rounded and whose choices have been decided
        as far as possible.
        """
        state = self._state(cost)
        node = _close(state)
        return None if node < 0 else state.step(node)

    def refutation(self, cost: float) -> list[Lemma]:
        """The steps of the proof that no schedule costs at most ``cost``.

        Each step increases the length of one arc, because of a longest path in the graph with the
        arc lengths after the previous step; the last step is a positive cycle. Returns an empty
        list if ``cost`` is not refuted, or if that takes more than :data:`MOST_STEPS` steps.
        """
        closed, state, steps = self._state(cost, None, MOST_STEPS), self._state(cost), list[Lemma]()
        node, rows = _close(closed), int(closed.rows[0])
        if node < 0 or rows > MOST_STEPS:
            return []
        ends, step = (-1, -1), Lemma([], [])
        for *path, arc, length in closed.log[:rows].tolist():
            before, ends = ends, (int(path[0]), int(path[1]))
            if ends != before:  # otherwise one path makes several arcs longer
                step = state.step(*ends) if ends[0] >= 0 else Lemma([], [])
            steps.append(step._replace(arc=int(arc), length=length))
            state.length[int(arc)] = length
        return [*steps, state.step(node)]


class _State(NamedTuple):
    """The state of a refutation, for kernels.

    ``length``: the current length of each arc, shape (A,). ``path``, ``via``: for each node, the
    length of the longest path to it from the source of the last search, and the last arc of that
    path. ``log``: a row for each change of an arc's length: source and target of the path that
    causes it, the arc, the new length. ``rows``: the number of changes so far, shape (1,), which
    may exceed the rows of ``log``. ``slack``: differences up to this are rounding errors.
    """

    graph: Closing
    length: FloatArray
    slack: float
    path: FloatArray
    via: IntArray
    log: FloatArray
    rows: IntArray

    def step(self, source: int, target: int | None = None) -> Lemma:
        """Return the longest path from ``source`` to ``target`` as a lemma.

        Its arc and length are not set. If ``target`` is None, the lemma is a positive cycle that
        can be reached from ``source``; such a cycle must exist.
        """
        tail, node = self.graph.tail, _longest(self, source)
        nodes, lengths = list[int](), list[float]()
        if target is None:
            for _ in range(self.graph.nodes):
                node = int(tail[self.via[node]])
            source = target = node
        else:
            back = (tail == target) & (self.graph.head == source)
            nodes, lengths = [target], [float(self.length[back].max(initial=-np.inf))]
        while (not nodes or nodes[-1] != source) and len(nodes) <= self.graph.nodes:
            arc = self.via[nodes[-1] if nodes else target]
            nodes.append(int(tail[arc]))
            lengths.append(float(self.length[arc]))
        return Lemma(nodes[::-1], lengths[::-1])


@kernel
def _close(state: _State) -> int:
    """Round the links and decide the choices until nothing changes or a cycle is positive.

    Returns a node from which :meth:`_State.step` finds a positive cycle, or -1 if none was found.
    """
    graph, before = state.graph, -1
    if _longest(state, graph.tail[0]) >= 0:
        return int(graph.tail[0])
    while state.rows[0] != before:
        before = state.rows[0]
        for link in range(len(graph.links)):
            node = _round(state, link)
            if node >= 0:
                return node
        for choice in range(len(graph.choices)):
            node = _decide(state, choice)
            if node >= 0:
                return node
    return -1


@kernel
def _round(state: _State, link: int) -> int:
    """Round both bounds on the work T - I of a link, and raise the length of its pay, if any.

    Returns a node from which :meth:`_State.step` finds a positive cycle, or -1 if none was found.
    """
    graph, length, slack = state.graph, state.length, state.slack
    idle, time, low, paid, begin, end = graph.links[link]
    values, before = graph.values[begin:end], state.rows[0]
    if length[low] + length[low + 1] >= -slack:
        return -1
    if _longest(state, idle) >= 0:
        return int(idle)
    first = np.searchsorted(values, state.path[time] - slack)
    if first < len(values) and values[first] > length[low] + slack:
        _raise(state, low, values[first], idle, time)
    if _longest(state, time) >= 0:
        return int(time)
    last = np.searchsorted(values, slack - state.path[idle], "right") - 1
    if last >= 0 and -values[last] > length[low + 1] + slack:
        _raise(state, low + 1, -values[last], time, idle)
    if last < first:  # no value is left
        return int(idle)
    if paid >= 0 and state.rows[0] > before:
        pay = graph.pays[begin + first : begin + last + 1].min()
        if pay > length[paid] + slack:
            _raise(state, paid, pay, -1, -1)
    return -1


@kernel
def _decide(state: _State, choice: int) -> int:
    """Add the arcs of one side of a choice if the choice is open and its other side is refuted.

    Returns a node from which :meth:`_State.step` finds a positive cycle, or -1 if none was found.
    """
    graph, length, options = state.graph, state.length, state.graph.options
    begin, middle, end = graph.choices[choice]
    if length[options[begin]] > -np.inf or length[options[middle]] > -np.inf:
        return -1
    for k in range(begin, end):
        source, target = graph.head[options[k]], graph.tail[options[k]]
        if _longest(state, source) >= 0:
            return int(source)
        if state.path[target] + graph.active[k] > state.slack:
            first, last = (middle, end) if k < middle else (begin, middle)
            for other in range(first, last):
                _raise(state, options[other], graph.active[other], source, target)
            return -1
    return -1


@kernel
def _raise(state: _State, arc: int, length: float, source: int, target: int) -> None:
    """Set the length of an arc, and log the change with the path that causes it.

    ``source``, ``target``: the first and the last node of this path; both are -1 if the arc is a
    pay, as the change then follows from the bounds of a link.
    """
    row = state.rows[0]
    state.length[arc] = length
    if row < len(state.log):
        log = state.log[row]
        log[0], log[1], log[2], log[3] = source, target, arc, length
    state.rows[0] = row + 1


@kernel
def _longest(state: _State, source: int) -> int:
    """Find the longest paths from ``source`` to all nodes by the Bellman-Ford algorithm.

    Stores their lengths in ``state.path`` and their last arcs in ``state.via``. Returns a node
    whose path contains a positive cycle, or -1 if there is no such node.
    """
    tail, head, length, path = state.graph.tail, state.graph.head, state.length, state.path
    path[:] = -np.inf
    path[source] = 0.0
    node, arcs = -1, len(tail)
    for _ in range(len(path)):
        node = -1
        for k in range(2 * arcs):  # forwards, then backwards
            arc = k if k < arcs else 2 * arcs - 1 - k
            found = path[tail[arc]] + length[arc]
            if found > path[head[arc]] + state.slack:
                node = head[arc]
                path[node], state.via[node] = found, arc
        if path[source] > state.slack:
            return source
        if node < 0:
            return -1
    return int(node)
