"""ZB-V (Zero Bubble Pipeline Parallelism, Qi et al., 2024): a V with the memory of 1F1B.

P = 3, M = 4, two chunks per rank, T_F = T_B = T_W of a chunk; lower case is the second chunk
(stages P..2P-1)::

    rank 0  F0 F1 F2 F3 .  f0 b0 f1 b1 w0 f2 b2 w1 B0 w2 f3 b3 B1 W0 B2 w3 B3 W1 W2 W3
    rank 1  .  F0 F1 F2 f0 F3 f1 b0 w0 f2 b1 w1 B0 W0 f3 b2 B1 b3 B2 w2 B3 W1 w3 W2 W3
    rank 2  .  .  F0 f0 F1 f1 F2 f2 b0 w0 F3 B0 W0 f3 b1 B1 b2 B2 b3 B3 w1 W1 w2 W2 w3 W3

The schedule is built op by op (see :mod:`.builder` for the four legs of a microbatch), by rules
that reproduce the published figures:

1. *In.* The first microbatch goes down and up. Until it is back at rank i, ranks 0..i run further
   F's down: as many as there is time for, and as leave memory for the F's up of the ranks before i.
2. *Level.* From rank 1 on, F's of both legs alternate, until each rank has run as many F's as the
   previous rank and one more F up.
3. *Rounds.* In each round every rank runs one B, up if its input has arrived, else down, then one
   F, up if its input has arrived, else down.

W's wait in a queue. A W runs in three cases: if an input arrives so late that the W fits in before
it; if memory is full; and if the rank would otherwise have waited longer, in total, than the rank
that has waited longest so far, and longer than its spare. The spare is 0 in the first attempt. In
the next one it is the difference between the longest wait of any rank in the previous attempt and
the rank's own wait there. Attempts are repeated as long as the longest wait gets shorter. The third
case may apply to B's down or not, and to F's or not, which gives four series of attempts. The best
of all attempts is taken.

The order is built for equal stages: mean times, mean delay, and memory for C chunks on each rank,
by default 2 P, which is the P x M_B of 1F1B. An op is appended after the ops it needs, so there is
no deadlock, whatever the times. Progress: the first unfinished microbatch can always continue. Its
B's need no memory. Its F up finds room once the waiting W's have run: the rank then holds only F's
down whose F's up are still to come, and there are never more than C - 1 of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import ParametrizedFamily, finished
from .base import VShapeFamily
from .builder import B_DOWN, B_UP, F_DOWN, F_UP, MeanStage, VBuilder

_SAME = 1e-9  # relative: closer times and amounts count as equal


class ZBV(ParametrizedFamily, VShapeFamily):
    """ZB-V for a memory of C chunks (microbatches on one stage) per rank.

    ``number``: C; None means 2 P, which is the memory of 1F1B.
    """

    base = "zb-v"
    summary = (
        "two chunks a rank in a V, B and W apart: 1F1B's memory (:C for C chunks), few bubbles"
    )
    parameter = "C"
    least = 2
    by_times = True

    def schedule(self, problem: Problem) -> Schedule:
        tries = (
            ways
            for before_b, before_f in product((True, False), repeat=2)
            for ways in self._improved(problem, (before_f, before_f, before_b, True))
        )
        return finished(problem, min(tries, key=lambda ways: ways.longest).order, self.name)

    def _improved(self, problem: Problem, fills: tuple[bool, ...]) -> Iterator[VBuilder]:
        """Yield complete schedules in which the longest total wait of a rank gets ever shorter.

        In all of them, a rank may wait at least as long as its *spare* allows: the longest total
        wait of any rank in the previous schedule minus this rank's total wait there, or 0 in the
        first schedule. ``fills``: for each leg (F down, F up, B down, B up), whether a W may run
        first to avoid a wait.
        """
        stage, ranks = MeanStage.of(problem), problem.ranks
        chunks = self.number or 2 * ranks
        spare, least = [0.0] * ranks, inf
        while True:
            ways = VBuilder(stage, ranks, problem.microbatches)
            _Rules(ways, chunks, fills, spare).apply()
            if ways.longest >= least:
                return
            yield ways
            least = ways.longest
            spare = [least - own for own in ways.waited]


@dataclass(frozen=True)
class _Rules:
    """The rules that choose the next op, applied to the schedule ``ways``, which they extend.

    ``chunks``: the number of chunks that each rank has memory for. ``fills``: for F down, F up, B
    down and B up, whether a W may run first to avoid a wait; otherwise the rank waits. ``spare``:
    for each rank, the longest total wait of any rank in the previous attempt minus the total wait
    of this rank.
    """

    ways: VBuilder
    chunks: int
    fills: tuple[bool, ...]
    spare: list[float]

    def apply(self) -> None:
        ways = self.ways
        self._in()
        self._level()
        while any(ways.count(rank, B_UP) < ways.microbatches for rank in range(ways.ranks)):
            self._round()
        for rank in range(ways.ranks):
            while ways.late[rank]:
                ways.run_w(rank)

    def _in(self) -> None:
        ways = self.ways
        for rank in range(ways.ranks):
            ways.run(rank, F_DOWN)
        for rank in reversed(range(ways.ranks)):
            back = ways.ready(rank, F_UP)
            assert back is not None
            while (
                self._room(rank, 2 * rank + 2)
                and _not_after(ways.clock[rank] + ways.stage.t_f, back)
                and ways.count(rank, F_DOWN) < ways.microbatches
            ):
                for above in range(rank + 1):
                    self._try(above, F_DOWN)
            ways.run(rank, F_UP)

    def _level(self) -> None:
        ways, leg = self.ways, F_DOWN
        for rank in range(1, ways.ranks):
            idle = 0  # passes that ran nothing; after two, nothing can run
            while self._behind(rank) and idle < 2:
                ran = [self._try(below, leg) for below in reversed(range(rank, ways.ranks))]
                idle = 0 if any(ran) else idle + 1
                leg = F_DOWN + F_UP - leg

    def _behind(self, rank: int) -> bool:
        """Return whether ``rank`` still lags behind the previous rank in its F's.

        It does if it has run fewer F's in total. It also does if it has not run more F's up (on the
        second chunk) than the previous rank, unless the previous rank has run all of its F's up.
        """
        (down, up), (down_before, up_before) = (
            (self.ways.count(r, F_DOWN), self.ways.count(r, F_UP)) for r in (rank, rank - 1)
        )
        return down + up < down_before + up_before or up <= up_before < self.ways.microbatches

    def _round(self) -> None:
        ways = self.ways
        ups = [ways.ready(rank, B_UP) is not None for rank in range(ways.ranks)]
        for rank in reversed(range(ways.ranks)):
            if ups[rank]:
                self._run(rank, B_UP)
        for rank in range(ways.ranks):
            if not ups[rank] and ways.ready(rank, B_DOWN) is not None:
                self._run(rank, B_DOWN)
        for rank in range(ways.ranks):
            leg = F_DOWN if ways.ready(rank, F_UP) is None else F_UP
            if ways.ready(rank, leg) is not None and self._make_room(rank, leg):
                self._run(rank, leg)

    def _run(self, rank: int, leg: int) -> None:
        """Run the next op on ``leg`` (F or B, down or up), after the W's that go before it."""
        ways = self.ways
        ready = ways.ready(rank, leg)
        assert ready is not None
        if ways.comes_from(rank, leg) is not None:
            while ways.late[rank] and _not_after(ways.clock[rank] + ways.stage.t_w, ready):
                ways.run_w(rank)
        wait = ready - ways.clock[rank]
        if ways.late[rank] and self.fills[leg] and not _not_after(wait, self._patience(rank)):
            ways.run_w(rank)
        ways.run(rank, leg)

    def _patience(self, rank: int) -> float:
        """Return how much longer ``rank`` may wait.

        Its total wait may reach the longest total wait of any rank so far, or its ``spare`` if that
        is longer.
        """
        most = max(self.ways.longest, self.spare[rank])
        return most - self.ways.waited[rank]

    def _make_room(self, rank: int, leg: int) -> bool:
        """Run W's until one more chunk fits in memory for an F; return whether the F may run.

        The F may not run if the chunk does not fit even after all waiting W's, or if it is an F
        down and would take the rank's last chunk, which is reserved for an F up. ``leg``: F_DOWN or
        F_UP.
        """
        ways = self.ways
        below = ways.count(rank, F_DOWN) - ways.count(rank, F_UP)
        if leg == F_DOWN and below == self.chunks - 1:  # the last chunk is reserved for an F up
            return False
        while not self._room(rank, 1) and ways.late[rank]:
            ways.run_w(rank)
        return self._room(rank, 1)

    def _try(self, rank: int, leg: int) -> bool:
        possible = self.ways.ready(rank, leg) is not None and self._make_room(rank, leg)
        if possible:
            self.ways.run(rank, leg)
        return possible

    def _room(self, rank: int, chunks: int) -> bool:
        return _not_after(self.ways.held[rank] + chunks, self.chunks)


def _not_after(a: float, b: float) -> bool:
    return a <= b + _SAME * max(1.0, abs(b))
