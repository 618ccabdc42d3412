"""The weights that a rank prefetches to run a given order of ops with few buffers.

A *visit* is a sequence of successive F's, B's and BW's of one stage (W's need no weights and do not
end it). The order of visits is known. So a new stage takes the buffer of the stage that is needed
again last (Belady's algorithm, 1966), which gives the fewest transfers. ``lead`` allows more
transfers to save time: a stage that was used in one of the last ``lead`` visits before the current
one is replaced only if all others were as well. So the buffer is free, and the transfer can start,
some time before the new stage is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.model.ops import KIND_MASK, STAGE_MASK, STAGE_SHIFT, IntArray, OpKind


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit: a sequence of successive ops of ``stage`` on a rank.

    ``number``: the number of earlier visits of this stage on the rank. ``first``, ``last``: the
    positions of the visit's first and last op in the rank's order.
    """

    stage: int
    number: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The transfer of a stage's weights to a rank for ``visit``.

    ``room``: how many ops the rank must have run before the transfer may start; then a buffer is
    free.
    """

    visit: Visit
    room: int


def visits(order: IntArray) -> list[Visit]:
    """Return the visits in one rank's packed ops, in the order in which they occur.

    A visit is a sequence of successive F's, B's and BW's of one stage; W's in between do not count.
    """
    kind, stage = order & KIND_MASK, order >> STAGE_SHIFT & STAGE_MASK
    using = np.flatnonzero(kind != OpKind.W)
    if not len(using):
        return []
    change = np.flatnonzero(np.diff(stage[using])) + 1
    firsts, lasts = using[np.append(0, change)], using[np.append(change - 1, len(using) - 1)]
    counts: defaultdict[int, int] = defaultdict(int)
    found = []
    for here, first, last in zip(
        stage[firsts].tolist(), firsts.tolist(), lasts.tolist(), strict=True
    ):
        found.append(Visit(here, counts[here], first, last))
        counts[here] += 1
    return found


def prefetches(found: Sequence[Visit], buffers: int, lead: int) -> list[Prefetch]:
    """Return the prefetches that a rank needs for the visits ``found``, in the same order.

    ``found``: the rank's visits of stages that it does not own. ``buffers``: the number of buffers
    for the weights of such stages. ``lead``: a stage used in one of the last ``lead`` visits keeps
    its buffer if possible. Raises ValueError if ``buffers`` is less than one.
    """
    if buffers < 1:
        raise ValueError(f"buffers: expected 1 or more, got {buffers}")
    following = _following(found)
    held: dict[int, int] = {}  # the index of the last visit of each stage in a buffer
    result = []
    for i, visit in enumerate(found):
        if visit.stage not in held:
            room = 0
            if len(held) >= buffers:
                room = found[held.pop(_given_up(held, following, i - 1 - lead))].last + 1
            result.append(Prefetch(visit, room))
        held[visit.stage] = i
    return result


def _following(found: Sequence[Visit]) -> list[float]:
    """Return, for each visit, the index of the next visit of the same stage.

    It is infinity if there is no further one.
    """
    following = [float("inf")] * len(found)
    later: dict[int, int] = {}
    for i in reversed(range(len(found))):
        following[i] = later.get(found[i].stage, float("inf"))
        later[found[i].stage] = i
    return following


def _given_up(held: dict[int, int], following: Sequence[float], newest: int) -> int:
    """Return the stage that gives up its buffer to a new stage.

    Among the stages that were not used after visit ``newest``, it is the one whose next use is
    latest. If all were used after that visit, it is the one whose last use is earliest. ``held``:
    the index of the last visit of each stage that occupies a buffer. ``following``: the result of
    :func:`_following`.
    """
    old = [stage for stage, visit in held.items() if visit <= newest]
    if not old:
        return min(held, key=held.__getitem__)
    return max(old, key=lambda stage: (following[held[stage]], -held[stage]))
