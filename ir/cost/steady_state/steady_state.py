"""Consecutive iterations of a schedule, in which all messages contend for wires.

Unlike in :mod:`..simulator`, activations and their gradients occupy wires as weights do, and the
next iteration begins without a barrier. A wire serves messages first come, first served, as
networks do, not in the order of the schedule's list. With this model, schedules that send different
tensors can be compared, and measured steps predicted.

Within an iteration, the rules of :mod:`..simulator` for ops and the fields of transfers (``after``,
``room``, ``before``, ``blocks``) apply. In addition:

- An activation, or its gradient, that is needed on another rank is a message. It is ready when the
  op that computes it ends, and takes the delay of the cost model (:class:`..cost_tables.Costs`).
- Each wire has a queue, first come, first served. A message joins the queue of its first wire when
  it is ready, and the queue of each further wire when it starts on the wire before, since frames
  are forwarded hop by hop. It occupies its slowest wire for its whole duration, and a faster hop of
  a ring for a correspondingly smaller part of it (:meth:`...model.links.Links.shares`). It has
  arrived when it has left all its wires. Of messages that join a queue at the same time (up to
  rounding), those of earlier iterations go first, then activations before transfers, then they go
  in the order of the list.
- A message also waits for a notice from its receiver that a buffer is free. The notice is sent when
  the receiver has begun the iteration and has done its first ``room`` ops. It waits in the queues
  of the wires in the opposite direction, but occupies them for no time.
- A rank begins its next iteration when its ops are done, all messages to it in this iteration have
  arrived, and all messages from it are ready (they may be sent later, as the transport has a copy).
  At this moment, the rank steps the weights that it owns, which takes no time, and posts all its
  receives again. No message leaves or enters a rank before the rank has begun the message's
  iteration.
- Gradients are averaged over replicas of the pipeline while ops run, and before the next iteration
  (:mod:`..gradient_averaging`).
- The gradients of a replicated stage (:func:`...model.transfers.holders`) are summed before the
  next iteration, as soon as all ranks of the stage have finished their ops and messages
  (:func:`.iteration_graph.all_reduces`). A rank does this for one stage at a time.

Without ``links`` there are no wires, so messages do not delay each other.
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
    """Simulate ``iterations`` repetitions of ``iteration``, the graph of ``schedule``.

    Returns the start and the end of each node, (iterations, N) each, and the time when each rank
    has finished the last iteration, (P,), all in ms. Raises InvalidScheduleError if the schedule
    can never run.
    """
    found = iteration.play(iterations)
    if found is None:
        simulate(schedule)  # raises the error that names what can never start
        raise AssertionError("a schedule that can be simulated can be played")
    return found


def step_time(schedule: Schedule, routes: MessageTable | None = None) -> float:
    """Milliseconds per iteration in the steady state.

    The function simulates 4, 8, 16, 32 and 64 iterations, and stops as soon as the last of them
    repeat in a cycle of c iterations, where c is at most a quarter of their number: each of the
    last 2 c iterations ends, on every rank, the same time T after the iteration that is c earlier.
    The result is T / c. If there is no cycle within 64 iterations, the result is the mean time of
    the last 32. ``routes``: a table of transfers that replaces the schedule's own, such as that of
    :func:`.send_points.between_ops`.

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
