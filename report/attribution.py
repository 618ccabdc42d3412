"""Compares a measured schedule with its plan: where each rank's time went.

For each rank, the measured makespan is divided into compute and three kinds of idle time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from pipeloom.ir.cost.dependency_graph import ScheduleGraph, joined
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import KIND_MASK, FloatArray, OpKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted, memory_size

from .bars import peak_memory, timed
from .text_table import table


@dataclass(frozen=True, slots=True)
class RankTime:
    """The time of one rank in the measured makespan, divided into parts in ms, and its peak memory.

    ``planned_compute`` and ``compute``: time in ops, planned and measured. The measured idle time
    is divided into ``waiting`` (until other ranks had computed an input, and after the rank's last
    op), ``receive`` (from the end of that computation until the input had arrived) and ``host``
    (after all inputs had arrived). ``planned_peak`` and ``peak``: planned and recorded peak memory,
    in the profile's unit.
    """

    rank: int
    planned_compute: float
    compute: float
    waiting: float
    receive: float
    host: float
    planned_peak: float
    peak: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """The planned and the measured makespan in ms, and the measured time of each rank."""

    planned: float
    measured: float
    ranks: tuple[RankTime, ...]

    def to_dict(self) -> dict[str, Any]:
        """The whole attribution as a dictionary for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """A line with both makespans, and a table of the ranks."""
        beyond = self.measured - self.planned
        share = f" ({beyond / self.planned:+.1%})" if self.planned > 0 else ""
        head = (
            f"makespan {self.planned:.5g} ms planned, {self.measured:.5g} ms measured, "
            f"{beyond:+.5g} ms{share}; time of each rank in ms:"
        )
        times = ["planned compute", "compute", "waiting", "receive", "host"]
        rows = []
        for rank, *figures in map(astuple, self.ranks):
            shown = [f"{ms:.5g}" for ms in figures[: len(times)]]
            rows.append([str(rank), *shown, *map(memory_size, figures[len(times) :]), ""])
        return f"{head}\n\n{table(['rank', *times, 'planned peak', 'peak', ''], rows)}"


def attribute(planned: Schedule, measured: Schedule) -> Attribution:
    """Attribute the measured time of each rank to compute, waiting, messages and the host.

    Traces do not contain weight transfers. Each transfer is assumed to start when the measured ops
    that it waits for have ended, and to take its planned time. Raises InputError if the two
    schedules do not run the same ops in the same order on each rank, or if ``measured`` has no
    times.
    """
    if measured.timing is None:
        raise InputError("measured schedule: expected times, got none")
    _check_same_ops(planned, measured)
    planned, measured = timed(planned), timed(measured)
    plan, took = planned.known_timing.makespan, measured.known_timing.makespan
    return Attribution(plan, took, tuple(_ranks(planned, measured)))


def _check_same_ops(planned: Schedule, measured: Schedule) -> None:
    ranks, found = planned.problem.ranks, measured.problem.ranks
    if ranks != found:
        words = f"expected {counted(ranks, 'rank')} as planned, got {found}"
        raise InputError(f"measured schedule: {words}")
    for rank in range(ranks):
        pairs = zip_longest(planned.ops(rank), measured.ops(rank), fillvalue="the end")
        for at, (wanted, got) in enumerate(pairs):
            if wanted != got:
                words = f"rank {rank}, op {at}: expected {wanted} as planned, got {got}"
                raise InputError(f"measured schedule: {words}")


def _ranks(planned: Schedule, measured: Schedule) -> Iterator[RankTime]:
    timing, offsets = measured.known_timing, [0, *np.cumsum([*map(len, measured.order)]).tolist()]
    made, came = _inputs(planned, np.concatenate(timing.end))
    for rank, row in enumerate(measured.order):
        computes = (row & KIND_MASK) < OpKind.O  # copies to and from the host do not occupy it
        start, end = timing.start[rank][computes], timing.end[rank][computes]
        own = slice(offsets[rank], offsets[rank + 1])
        before = np.concatenate([[0.0], end])[:-1]
        gap = np.maximum(0.0, start - before)
        idle = np.clip(made[own][computes] - before, 0.0, gap)
        late = came[own][computes] > before
        yield RankTime(
            rank,
            planned_compute=float(planned.known_timing.took[rank][computes].sum()),
            compute=float((end - start).sum()),
            waiting=float(idle.sum() + timing.makespan - end.max(initial=0.0)),
            receive=float((gap - idle)[late].sum()),
            host=float((gap - idle)[~late].sum()),
            planned_peak=peak_memory(planned)[rank],
            peak=peak_memory(measured)[rank],
        )


def _inputs(planned: Schedule, ends: FloatArray) -> tuple[FloatArray, FloatArray]:
    """When the last input of each op that is not from its own rank was computed, and had arrived.

    Two arrays, (N,) each, in ms. Copies from the host count as inputs. ``ends``: the measured end
    of each op, (N,).
    """
    graph, count = ScheduleGraph.of(planned), len(ends)
    origin, to, delay = joined(graph.all_edges)
    done = np.concatenate([ends, graph.duration[count:]])
    assert not ((to >= count) & (origin >= to)).any(), "a transfer waits for a later one"
    edges = np.argsort(to, kind="stable")
    firsts = np.searchsorted(to, np.arange(count, len(done) + 1), sorter=edges)
    for node, (first, end) in enumerate(pairwise(firsts), start=count):
        mine = edges[first:end]  # from ops and from transfers listed before
        done[node] += (done[origin[mine]] + delay[mine]).max(initial=0.0)
    copies = np.concatenate(planned.order) & KIND_MASK >= OpKind.O
    track = np.concatenate([2 * graph.ranks + copies, np.full(len(done) - count, -1)])
    others = (to < count) & (track[origin] != track[to])
    origin, to, delay = origin[others], to[others], delay[others]
    made, came = np.zeros((2, count))
    np.maximum.at(made, to, done[origin])
    np.maximum.at(came, to, done[origin] + delay)
    return made, came
