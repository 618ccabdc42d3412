"""WeiPipe-Interleave (WeiPipe, Lin et al., 2025): microbatches stay on ranks, weights pass by.

P stages on P ranks. Rank r runs all stages of microbatches r, P + r, 2P + r, ..., whose
activations never leave it. In turn t rank r is in phase q = t - r; the k-th of its microbatches
runs F of stage q - Pk in phases Pk .. Pk+P-1 and BW of stage P(k+2) - 1 - q in phases
P(k+1) .. P(k+1)+P-1; where both fall in one turn BW goes first. P = 2, M = 4 (rank 0 has
microbatches 0 and 2; ``F10`` is stage 1, microbatch 0, ``B`` a fused BW), the turns ruled off::

    turn    0     1     2         3         4         5     6
    rank 0  F00 | F10 | B10 F02 | B00 F12 | B12     | B02 |
    rank 1      | F01 | F11     | B11 F03 | B01 F13 | B13 | B03

Stage s is owned by rank s, which keeps the true weights. Two copies of its weights set out from
there for rank 0, one for the F's and one for the BW's, and then visit the microbatches in order,
one a turn: copy 0 is with microbatch j in turn s + j, copy 1 in turn 2P - 1 - s + j. The gradient's
accumulator D starts at zero with microbatch 0, travels with copy 1, and goes from the last
microbatch home to the owner. What travels on leaves when the rank has finished its turn, and a rank
has room for what the next turn needs before the last op of the turn. This order is why the method
has a bubble: F's and BW's could go on without D (see docs/weight-passing.md).

Makespan without communication, with t = T_F + T_B + T_W of a stage equal everywhere: all that joins
two ranks leads from one turn to the next, so the makespan is at most the sum over the turns of the
most work that any rank has in it. The last F is in turn M + P - 2, the first BW in turn P: P turns
have F's alone, P turns BW's alone, M - 1 turns both. In all (M + P - 1) t, the published bubble rate
(P-1)/(M+P-1). Where M > P one chain attains it: rank 0 until it runs out of F's to run beside BW's,
then D's rank by rank to the last one. Where M <= P no rank has both in one turn, and the makespan is
P t + (M - 1) max(T_F, T_B + T_W), less than the formula's where 1 < M.

Memory: a rank holds at most the activations of P stages (its whole model for one microbatch).
Any M: where P does not divide it some ranks have one microbatch fewer; for M < P some have none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from pipeloom.ir.ops import Op, OpKind
from pipeloom.ir.problem import Objective, Passing, Placement, Problem
from pipeloom.ir.profile import Profile
from pipeloom.ir.schedule import Schedule, Transfer, TravelKind

from .base import finished, require

FOR_F, FOR_BW = 0, 1  # the copies of a stage's weights


@dataclass(frozen=True)
class WeiPipeInterleave:
    name: str = "weipipe-interleave"
    summary: str = "weights and gradients travel, activations stay: traffic independent of length"

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        placement = Placement.round_robin(profile.ranks, microbatches)
        limit = profile.limit_from(memory_limit)
        problem = Problem(profile, microbatches, placement, limit, objective)
        require(self.name, self.supports(problem))
        return problem

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if problem.stages != ranks:
            return f"needs as many stages as ranks, not {problem.stages} stages on {ranks} rank(s)"
        if placement.passing is not Passing.WEIGHTS or placement.owners != tuple(
            j % ranks for j in range(problem.microbatches)
        ):
            return f"needs microbatch j on rank j mod {ranks}, not the placement {placement.name}"
        return None

    def build(self, problem: Problem) -> Schedule:
        require(self.name, self.supports(problem))
        turns = _Turns(problem.ranks, problem.microbatches)
        order = [[op for _, op in row] for row in turns.rows]
        return finished(problem, order, self.name, transfers=_transfers(turns))


class _Turns:
    """Which op runs on which rank in which turn."""

    def __init__(self, ranks: int, microbatches: int) -> None:
        self.ranks = ranks
        self.microbatches = microbatches
        self.rows = [list(_row(rank, ranks, microbatches)) for rank in range(ranks)]
        self._position = {op: i for row in self.rows for i, (_, op) in enumerate(row)}
        self._turn = [[turn for turn, _ in row] for row in self.rows]

    def done(self, rank: int, turn: int) -> int:
        """How many ops ``rank`` has run when ``turn`` is over."""
        return bisect_right(self._turn[rank], turn)

    def before(self, rank: int, op: Op | None) -> int:
        return len(self.rows[rank]) if op is None else self._position[op]


def _row(rank: int, ranks: int, microbatches: int) -> Iterator[tuple[int, Op]]:
    """The turns and ops of ``rank``."""
    own = range(rank, microbatches, ranks)
    for phase in range(ranks * (len(own) + 1)):
        k, j = divmod(phase, ranks)
        if k >= 1:
            yield rank + phase, Op(OpKind.BW, ranks - 1 - j, own[k - 1])
        if k < len(own):
            yield rank + phase, Op(OpKind.F, j, own[k])


@dataclass(frozen=True, slots=True)
class _Item:
    """One item that travels: it is with microbatch 0 in turn ``first``, for the op of kind ``op``."""

    kind: TravelKind
    stage: int
    copy: int
    op: OpKind
    first: int


def _items(ranks: int) -> Iterator[_Item]:
    for stage in range(ranks):
        forward, backward = stage, 2 * ranks - 1 - stage
        yield _Item(TravelKind.WEIGHT, stage, FOR_F, OpKind.F, forward)
        yield _Item(TravelKind.WEIGHT, stage, FOR_BW, OpKind.BW, backward)
        yield _Item(TravelKind.GRADIENT, stage, 0, OpKind.BW, backward)


def _transfers(turns: _Turns) -> tuple[Transfer, ...]:
    """All transfers, in the order of the turns after which they happen."""
    if turns.ranks == 1:
        return ()
    legs = [leg for item in _items(turns.ranks) for leg in _journey(turns, item)]
    return tuple(transfer for _, transfer in sorted(legs, key=lambda leg: leg[0]))


def _journey(turns: _Turns, item: _Item) -> Iterator[tuple[int, Transfer]]:
    """The transfers of ``item``, each with the turn after which it happens."""
    owner, ranks, microbatches = item.stage, turns.ranks, turns.microbatches
    stops: list[tuple[int, Op | None]] = [
        (j % ranks, Op(item.op, item.stage, j)) for j in range(microbatches)
    ]
    turn = item.first
    if item.kind is TravelKind.WEIGHT and owner != 0:
        stops.insert(0, (owner, None))
        turn -= 1
    if item.kind is TravelKind.GRADIENT and owner != stops[-1][0]:
        stops.append((owner, None))
    for (source, used), (target, needed) in pairwise(stops):
        # the owner has the weights from the start
        after = 0 if used is None else turns.done(source, turn)
        room = max(turns.done(target, turn - 1), turns.done(target, turn) - 1)
        before = turns.before(target, needed)
        yield (
            turn,
            Transfer(item.kind, item.stage, item.copy, source, target, after, before, room),
        )
        turn += 1
