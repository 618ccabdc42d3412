"""Iterations of a schedule played one after the other, with everything on the wires.

What :mod:`..simulator` leaves out is here: activations and their gradients occupy wires as weights
do, and the next iteration begins without a barrier. The order on a wire is not the schedule's list
but first come, first served, as networks do it. Schemes that pass different things are compared,
and measured steps predicted, by this.

Rules, beside the contract's for ops and the schedule's for transfers (``after``, ``room``,
``before``, ``blocks``), which hold within an iteration:

- An activation or its gradient that changes ranks is a message; it sets out when its op ends and
  takes what the cost model says (:class:`..cost_tables.Costs`).
- Each wire has a queue, first come, first served. A message joins that of its first wire when it is
  ready, and that of the next when it starts on the one before: frames pass one hop after the other.
  It keeps its slowest wire for its whole time, a faster hop of a ring for as much less of it as
  that is faster (:meth:`...model.links.Links.shares`), and has arrived when it has left them all.
  Of two that come at one moment (but for rounding) the earlier iteration's goes first, then
  activations before transfers, then as listed.
- A message also waits for its receiver's notice that there is room: once the receiver has begun and
  ``room`` holds, it goes back over the wires the other way. It takes no time there, but its turn.
- A rank begins its next iteration once its ops are done, all that it was to receive in this one has
  arrived and all that it sends is ready, wires aside: whoever carries messages has its copy then.
  The weights that it owns are stepped then, and every receive is posted anew. Nothing leaves or
  enters a rank before it has begun that iteration. The step itself takes no time.

- Gradients are averaged over replicas of the pipeline beside all that, and before the next
  iteration (:mod:`..gradient_averaging`).
- The gradients of a replicated stage (:func:`...model.transfers.holders`) are summed before that,
  once all its ranks are as far (:func:`.iteration_graph.all_reduces`); a rank does so stage by
  stage.

Without ``links`` there are no wires, and nothing waits for any.
"""

from __future__ import annotations

import numpy as np

from ...model.ops import FloatArray
from ...model.schedule import Schedule
from ..dependency_graph import MessageTable
from ..simulator import simulate
from .iteration_graph import IterationGraph

_LENGTHS = (4, 8, 16, 32, 64)
_TOLERANCE = 1e-9  # relative, on intervals between iterations


def played(
    schedule: Schedule, iteration: IterationGraph, iterations: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Start and end of each node in each of ``iterations`` of the schedule's graph, and when each
    rank is done with all of them.

    Raises InvalidScheduleError where the schedule can never run.
    """
    found = iteration.play(iterations)
    if found is None:
        simulate(schedule)  # names what can never start
        raise AssertionError("a schedule that can be simulated can be played")
    return found


def step_time(schedule: Schedule, routes: MessageTable | None = None) -> float:
    """Milliseconds from one iteration to the next once they follow each other steadily.

    4 iterations are played, then 8, 16, 32 and 64, until the last ones repeat with a cycle of c,
    at most a quarter of all: every rank ends each of the last 2 c iterations the same time after it
    ended the one c before. That time over c is the answer. Where 64 do not repeat, it is the mean
    of the last 32. ``routes``: of the transfers, where they are not the schedule's.

    Raises InvalidScheduleError where the schedule can never run.
    """
    iteration = IterationGraph.of(schedule, routes)
    begin = np.zeros((1, 1))
    for iterations in _LENGTHS:
        start, _, done = played(schedule, iteration, iterations)
        begin = np.vstack([start[:, : iteration.ranks], done])
        begin = begin[:, done > 0.0]  # a rank with nothing to do has no pace
        steady = _steady(begin) if begin.size else 0.0
        if steady is not None:
            return steady
    half = len(begin) // 2
    return float((begin[-1].max() - begin[-1 - half].max()) / half)


def _steady(begin: FloatArray) -> float | None:
    for cycle in range(1, len(begin) // 4 + 1):
        grown = (begin[cycle:] - begin[:-cycle])[-2 * cycle :]
        slowest = float(grown.max())
        if slowest - float(grown.min()) <= _TOLERANCE * slowest:
            return slowest / cycle
    return None
