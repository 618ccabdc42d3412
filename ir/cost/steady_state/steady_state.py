"""Consecutive iterations of a schedule, with all messages on the wires.

Unlike in :mod:`..simulator`, activations and their gradients occupy wires as weights do, and the
next iteration begins without a barrier. A wire serves messages first come, first served, as
networks do, not in the order of the schedule's list. This model compares schedules that send
different tensors, and predicts measured steps.

Within an iteration, the contract's rules for ops and the schedule's rules for transfers (``after``,
``room``, ``before``, ``blocks``) hold. In addition:

- An activation or its gradient that changes ranks is a message. It is ready when its op ends, and
  takes the delay of the cost model (:class:`..cost_tables.Costs`).
- Each wire has a queue, first come, first served. A message joins the queue of its first wire when
  it is ready, and of the next one when it starts on the previous one, since frames are forwarded
  hop by hop. It occupies its slowest wire for its whole duration, a faster hop of a ring for a
  correspondingly smaller part (:meth:`...model.links.Links.shares`). It has arrived when it has
  left all wires. Of messages that join at the same time (up to rounding), the earlier iteration's
  goes first, then activations before transfers, then the order of the list.
- A message also waits for a notice from its receiver that there is room. The notice is sent when
  the receiver has begun the iteration and ``room`` holds. It waits in the queues of the wires in
  the opposite direction, but takes no time there.
- A rank begins its next iteration when its ops are done, everything that it receives in this one
  has arrived, and everything that it sends is ready (not necessarily sent: the transport then has a
  copy). Its owned weights are stepped then, and all receives are posted again. Nothing leaves or
  enters a rank before it has begun the iteration. The step takes no time.
- Gradients are averaged over replicas of the pipeline beside the ops, and before the next iteration
  (:mod:`..gradient_averaging`).
- The gradients of a replicated stage (:func:`...model.transfers.holders`) are summed before the
  next iteration, when all its ranks have come that far (:func:`.iteration_graph.all_reduces`). A
  rank does this one stage at a time.

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
_TOLERANCE = 1e-9  # relative, of the intervals between iterations


def played(
    schedule: Schedule, iteration: IterationGraph, iterations: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Simulate ``iterations`` repetitions of the schedule's graph.

    Returns start and end of each node, (iterations, N) each, and when each rank has finished, (P,),
    all in ms. Raises InvalidScheduleError if the schedule can never run.
    """
    found = iteration.play(iterations)
    if found is None:
        simulate(schedule)  # raises the error that names what can never start
        raise AssertionError("a schedule that can be simulated can be played")
    return found


def step_time(schedule: Schedule, routes: MessageTable | None = None) -> float:
    """Milliseconds per iteration in the steady state.

    It simulates 4, 8, 16, 32 and 64 iterations, until the last ones repeat with a cycle of c
    iterations, c at most a quarter of all: in the last 2 c iterations, every rank ends each one the
    same time T after the one c iterations earlier. The result is T / c. If 64 iterations do not
    repeat, it is the mean of the last 32. ``routes``: the table of transfers, if it differs from
    the schedule's.

    Raises InvalidScheduleError if the schedule can never run.
    """
    iteration = IterationGraph.of(schedule, routes)
    begin = np.zeros((1, 1))
    for iterations in _LENGTHS:
        start, _, done = played(schedule, iteration, iterations)
        begin = np.vstack([start[:, : iteration.ranks], done])
        begin = begin[:, done > 0.0]  # without ranks that have nothing to do
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
