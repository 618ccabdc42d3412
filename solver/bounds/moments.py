"""The moments bound: the minimum cost that a graph of moments (:mod:`.moment_graph`) allows.

The moments of a stage s are: S its first F starts, y its first B starts, t its last F starts, V its
last B ends. Those of a rank are the first S, first y, last t and last V of its stages, and the end
E of its last op. I is the time that the rank has been idle by a moment. If microbatches go in both
directions, there are two *streams*, one for each, and each has its own moments of stages.

**Between ranks.** The microbatches of the first F, last F, first B and last B of a stage have
passed the neighboring stage before, or go on to it (c is the delay)::

    S_(s+1) >= S_s + f_s + c        y_s >= y_(s+1) + b_(s+1) + c
    t_(s+1) >= t_s + f_s + c        V_s >= V_(s+1) + c + b_s

On the last stage y >= S + f and V >= t + f + b. Moreover t >= S + (M-1) f and V >= y + M b. If
memory cannot hold all M microbatches on the stage, t >= y + b.

**On a rank.** A rank runs one op at a time, so its idle time never decreases. If 1 to K are the
stages of a rank, its idle times at S_1 .. S_K, y_K, V_K .. V_1 ascend in this order, and so do
those at S_K, t_K, V_K. E is at least the idle time at V_1 plus the work of the rank. If
memory cannot hold all F's, the first B is before the last F; otherwise this is a choice. What a
rank has run by a moment depends on the microbatches that are in memory then. Let Z_s be the sum of
M_B on stages 1 to s:

- *By S_s*: F's on stages below s. Microbatches that have run them on stages 1 to q hold Z_q, in the
  memory that is left by the Z_s of the one that starts.
- *By y_K*: F's of microbatches that hold Z_q. One of them has run all its F's.
- *By t_K*: all work but the last F, the B's and W's of its microbatch, and B's and W's of others:
  microbatches whose B's on stages q to 1 are to come hold Z_q, those with a W to come hold M_W.
- *By V_s*: all work but the B's and W's of microbatches that are in memory with the Z_s of the
  last B.

After t, the last F and all remaining B's must run before V. Their time is the pay of t.

**Memory-time** bounds the times from S to V and to E (:mod:`.rank_model`).

**Cost.** E - S of each rank is at most the cost (period), or E minus the first S of all ranks is
(makespan).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.units import duration

from ..core.bound import Bound
from ..core.linear_instance import LinearInstance
from ..core.overlap_relaxation import least_times
from ..core.relaxations import unfused
from ..core.stopping import Budget
from ..core.streams import streams_of
from .general import busy, work
from .moment_graph import MomentGraph
from .moment_values import RankSets, StreamOnRank
from .rank_model import RankModel, held_until_last_backward
from .several_stages.general_placement import GeneralPlacement, HostModel, rank_visits

BRANCHES = 64  # maximum number of nodes of a search tree over the choices
START, OF_RANK = "start", " of "  # names of nodes
WORDS = "what must happen between the first and last ops of stages, and what memory allows by then"


def moments(problem: Problem, spans: FloatArray | None = None) -> Bound:
    """The moments bound: the minimum cost that the graph of moments does not refute.

    It is at least the work of the busiest rank. ``spans``: known lower bounds on the span of each
    stage's rank, as for :func:`moment_graph`.
    """
    graph = moment_graph(problem, spans)
    value = graph.closing().least(float(busy(problem).max()))
    cycle = Cycle.of(graph, value)
    if cycle is None:
        return replace(work(problem), name="moments", value=value)
    rank = int(problem.owner[int(cycle.end.rstrip("'")), -1 if cycle.end.endswith("'") else 0])

    def numbers() -> list[str]:
        own = float(busy(problem)[rank])
        late = ", or has not begun," if problem.objective is Objective.MAKESPAN else ""
        return [
            f"rank {rank} computes for {duration(own)} and idles{late} at least "
            f"{duration(value - own)}, because of these moments:",
            *cycle.lines(),
        ]

    return Bound(value, "moments", WORDS, rank, numbers)


def branched_moments(problem: Problem, known: float, ceiling: float, budget: Budget) -> Bound:
    """The moments bound with a search tree over the choices that the graph leaves open.

    It also holds for problems in which pairs save time, or in which a BW is faster than its B and
    W. ``known``: a known lower bound, and ``ceiling``: the cost of a known schedule; the result is
    at least the first and at most the second.
    """
    closing = moment_graph(least_times(unfused(problem))).closing()
    return Bound(closing.least(known, BRANCHES, ceiling, budget), "moments-tree", WORDS)


@dataclass(frozen=True, slots=True)
class Cycle:
    """A positive cycle in the graph of moments, which refutes a cost and so explains the bound.

    ``nodes``: the names of the nodes in order, beginning with the node that follows a rank's end;
    this first node is repeated at the end. ``lengths[k]``: the length of the arc from ``nodes[k]``
    to ``nodes[k + 1]``.
    """

    nodes: Sequence[str]
    lengths: Sequence[float]

    @classmethod
    def of(cls, graph: MomentGraph, cost: float) -> Self | None:
        """Return a positive cycle that refutes ``cost`` and contains the end of a rank.

        If no positive cycle of the refutation contains the end of a rank, the result is made of the
        refutation's last path that does: the path, closed by the arc from its last node to its
        first. Returns None if ``cost`` is not refuted, or if no such path exists either.
        """
        names, closing = list(graph.names), graph.closing()
        steps = [closing.cycle(cost)]
        if steps[0] is not None and not any(names[node][0] == "E" for node in steps[0].path):
            steps = list(closing.refutation(cost))
        for step in reversed(steps):
            nodes = [names[node] for node in step.path] if step else []
            ends = [k for k, node in enumerate(nodes) if node.startswith("E")]
            if step and ends:
                at = ends[0] + 1
                turned, lengths = nodes[at:] + nodes[:at], step.lengths
                return cls([*turned, turned[0]], lengths[at:] + lengths[:at])
        return None

    @property
    def end(self) -> str:
        """The rank at whose end the last arc begins, given by the name of its lowest stage."""
        return self.nodes[-2][1:]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the explanation: how far apart successive moments of the cycle are.

        Successive moments of the same kind, such as the first F's of several stages, are combined
        into one line.
        """
        begin, total, computes = self.nodes[0], 0.0, False
        for node, length, after in zip(
            self.nodes[1:-1], self.lengths, self.nodes[2:], strict=False
        ):
            total, computes = total + length, computes or node.startswith("I")
            if node.startswith("I") or (begin[0] == node[0] == after[0] and not computes):
                continue
            why = ", as the rank has to compute in between" if computes else ""
            if begin.startswith("E"):
                yield f"{_phrase(node)} is at most {duration(-total)} before {_phrase(begin)}"
            elif total > 0:
                yield f"{_phrase(node)} is at least {duration(total)} after {_phrase(begin)}{why}"
            begin, total, computes = node, 0.0, False


def _phrase(node: str) -> str:
    """The moment of the node named ``node`` in words, such as ``the first B of stage 2``."""
    words = {
        "S": "the first F",
        "y": "the first B",
        "t": "the last F",
        "V": "the end of the last B",
    }
    if node == START:
        return "the start of the schedule"
    stage = node[1:].removeprefix(OF_RANK)
    other = " in the other direction" if stage.endswith("'") else ""
    of = "the rank with stage" if node[1:] != stage or node[0] == "E" else "stage"
    return f"{words.get(node[0], 'the end')} of {of} {stage.rstrip(chr(39))}{other}"


def fewest_forwards(
    problem: Problem, linear: LinearInstance, costs: Sequence[float]
) -> list[IntArray]:
    """For each of ``costs``, the minimum number of F's that each stage runs before its first B.

    Returns one array of shape (S,) for each cost. The minimum is over all schedules that cost at
    most the cost; if it is proven that there are none, the array contains the number of
    microbatches that fit in each stage's memory instead. Each stage must have a rank of its own.
    ``linear``: the arrays of ``problem``.
    """
    graph = moment_graph(problem)
    closing, found = graph.closing(), []
    arcs = [graph.lower(f"y{s}") for s in range(problem.stages)]
    for cost in costs:
        length = closing.closed(cost)
        if length is None:
            found.append(linear.capacity)
        else:
            f = np.where(linear.f > 0, linear.f, np.inf)
            found.append(np.maximum(1, np.round(length[arcs] / f)).astype(np.int64))
    return found


def moment_graph(
    problem: Problem, spans: FloatArray | None = None, *, memory_time: bool = True
) -> MomentGraph:
    """The graph of moments of a problem without recomputation, offload and pairs.

    Each stage must be on one rank, or on one rank per direction. ``spans``: known lower bounds on
    the span of each stage's rank, shape (S,); allowed only if each stage has a rank of its own.
    ``memory_time``: whether the graph contains the bounds by memory-time.
    """
    graph, costs = MomentGraph(), Costs.of(problem)
    streams = streams_of(problem)
    f, b, w = costs.durations[:3]
    names = [[f"{s}" + "'" * k for s in range(problem.stages)] for k in range(len(streams))]
    for rank, model in rank_models(problem):
        own = list[StreamOnRank]()
        for microbatches, of_stages in zip(streams, names, strict=True):
            at = np.flatnonzero(costs.owner[:, microbatches[0]] == rank)
            arrays = (each[at] for each in (f, b, w, costs.m_b, costs.m_w))
            own.append(StreamOnRank(len(microbatches), [of_stages[s] for s in at], *arrays))
        first = START if problem.objective is Objective.MAKESPAN else None
        rank_sets = RankSets(model, [each for each in own if each.names])
        ends = _add_rank(graph, rank_sets, first)
        if memory_time and 0 < model.limit < np.inf:
            graph.arc(ends[0], ends[2], model.holding_span())
            graph.arc(ends[0], ends[1], held_until_last_backward(model))
    for microbatches, of_stages in zip(streams, names, strict=True):
        j = microbatches[0]
        graph.arc(START, f"S{of_stages[0]}", 0.0)
        if len(streams) == 1:
            graph.arc(f"S{of_stages[0]}", START, 0.0)
        _add_stream(graph, of_stages, f, b, costs.into_f[:, j], costs.into_b[:, j])
    for s, span in enumerate([] if spans is None else spans.tolist()):
        graph.arc(f"S{s}", f"E{s}", span)
    return graph


def rank_models(problem: Problem) -> Iterator[tuple[int, RankModel]]:
    """Yield the number and the model of each rank that runs any op."""
    if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
        yield from rank_visits(problem)
    else:
        yield from ((host.rank, host) for host in GeneralPlacement.of(problem).hosts)


def _add_stream(  # noqa: PLR0917
    graph: MomentGraph,
    names: Sequence[str],
    f: FloatArray,
    b: FloatArray,
    into_f: FloatArray,
    into_b: FloatArray,
) -> None:
    """Add arcs between the moments of neighboring stages, and those on the last stage.

    The moments are those of one stream. ``names``: the names of the S stages in the graph. The
    other arrays are by stage, shape (S,): ``f``, ``b``: T_F and T_B; ``into_f``, ``into_b``: the
    delays before F and before B.
    """
    for s, (here, later) in enumerate(pairwise(names)):
        down, up = float(f[s] + into_f[s + 1]), float(into_b[s])
        graph.arc(f"S{here}", f"S{later}", down)
        graph.arc(f"t{here}", f"t{later}", down)
        graph.arc(f"y{later}", f"y{here}", float(b[s + 1]) + up)
        graph.arc(f"V{later}", f"V{here}", float(b[s]) + up)
    graph.arc(f"S{names[-1]}", f"y{names[-1]}", float(f[-1]))
    graph.arc(f"t{names[-1]}", f"V{names[-1]}", float(f[-1] + b[-1]))


def _add_rank(graph: MomentGraph, rank: RankSets, first: str | None) -> tuple[str, str, str]:
    """Add the moments of a rank, with their links, and the arcs between these moments.

    ``first``: the name of the node from which the cost is counted, or None if it is counted from
    the rank's start. Returns the names of three nodes: the rank's start, the end of its last B, and
    the rank's end.
    """
    starts, first_b, last_f, last_b = _moments_of_rank(graph, rank.streams)
    end, idle_y, idle_t, idle_v = (
        f"E{rank.streams[0].names[0]}",
        f"I{first_b}",
        f"I{last_f}",
        f"I{last_b}",
    )
    graph.link(first_b, idle_y, rank.first_backward())
    graph.link(last_f, idle_t, rank.last_forward(), (last_f, last_b))
    graph.link(last_b, idle_v, rank.last_backward())
    _in_order(graph, (starts, idle_y, idle_v), (starts, idle_t, idle_v))
    graph.arc(idle_v, end, rank.model.work)
    graph.cost(end, first or starts)
    if sum(own.count * float(own.held[-1]) for own in rank.streams) > rank.limit:
        graph.arc(idle_y, idle_t, 0.0)
    else:  # the last F may also come before the first B, and then all F's precede it
        last = min(float(own.f[-1]) for own in rank.streams)
        apart = [(idle_y, idle_t, 0.0), (first_b, idle_y, last - rank.all_f)]
        swapped = [(idle_t, idle_y, 0.0), (idle_y, first_b, rank.all_f)]
        graph.choice(apart, [*swapped, (last_f, idle_t, last - rank.all_f)])
    for each in rank.streams:
        for i, name in enumerate(each.names):
            graph.arc(f"S{name}", f"t{name}", (each.count - 1) * float(each.f[i]))
            graph.arc(f"y{name}", f"V{name}", each.count * float(each.b[i]))
            graph.arc(f"V{name}", end, float(each.w[i]))
            if each.count * float(each.held[i]) > rank.limit:
                graph.arc(f"y{name}", f"t{name}", float(each.b[i]))
    if isinstance(rank.model, HostModel):
        _add_stages(graph, rank)
    return starts, last_b, end


def _moments_of_rank(graph: MomentGraph, streams: Sequence[StreamOnRank]) -> list[str]:
    """Return the names of four nodes: a rank's first F, first B, last F, and end of its last B.

    With one stream, they are nodes of the rank's lowest stage (first F, last B) and of its highest
    stage (first B, last F). With two streams, they are new nodes, which this function adds. Each of
    these is the earlier (first F, first B) or the later (last F, last B) of two moments, one in
    each stream; which of the two it is, is a choice of the graph.
    """
    low, top = ([own.names[at] for own in streams] for at in (0, -1))
    if len(streams) == 1:
        return [f"S{low[0]}", f"y{top[0]}", f"t{top[0]}", f"V{low[0]}"]
    for moment, names, is_first in (
        ("S", low, True),
        ("y", top, True),
        ("t", top, False),
        ("V", low, False),
    ):
        own, each = f"{moment}{OF_RANK}{low[0]}", [f"{moment}{name}" for name in names]
        for one in each:
            graph.arc(*((own, one) if is_first else (one, own)), 0.0)
        sides = [[(*((one, own) if is_first else (own, one)), 0.0)] for one in each]
        graph.choice(*sides)
    return [f"{moment}{OF_RANK}{low[0]}" for moment in "SytV"]


def _in_order(graph: MomentGraph, *chains: Sequence[str]) -> None:
    """Add arcs which state that the nodes of each chain do not decrease along the chain.

    The nodes are the idle times of one rank by successive moments.
    """
    for before, after in dict.fromkeys(pair for chain in chains for pair in pairwise(chain)):
        graph.arc(before, after, 0.0)


def _add_stages(graph: MomentGraph, rank: RankSets) -> None:
    """Add the links of the moments of each stage of a rank, and arcs for the order of the moments.

    The rank may run several stages. The links of the rank's own moments must have been added
    before.
    """
    names = rank.streams[0].names
    for i, name in enumerate(names[1:], 1):
        graph.link(f"S{name}", f"IS{name}", rank.first_forward(i))
        graph.link(f"V{name}", f"IV{name}", rank.last_backward(i))
    top, starts = names[-1], [f"S{names[0]}", *(f"IS{name}" for name in names[1:])]
    ends = [f"IV{name}" for name in names[::-1]]
    _in_order(graph, [*starts, f"Iy{top}", *ends], [starts[-1], f"It{top}", ends[0]])
