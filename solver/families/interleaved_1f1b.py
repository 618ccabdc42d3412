"""Interleaved 1F1B (Narayanan et al., 2021, figure 4): K chunks of the model a rank.

Stage s runs on rank s mod P. P = 2, K = 2, M = 4, T_F = T_B = T_W of a chunk; upper case is the
first chunk (stages 0..P-1), lower case the second, ``B0 --`` a fused BW of microbatch 0::

    rank 0   F0 F1 f0 f1 F2 .  b0 -- F3 b1 -- f2 B0 -- f3 B1 -- .  b2 -- .  b3 -- B2 -- B3 --
    rank 1   .  F0 F1 f0 b0 -- f1 b1 -- F2 B0 -- F3 B1 -- f2 b2 -- f3 b3 -- B2 -- B3 --

Forwards go by groups of P microbatches: a group passes the first chunk, then the second, ...;
backwards the same with the chunks reversed. Rank i runs (K - 1) P + 2 (P - 1 - i) F's before
F and BW alternate. Where P divides M this is Megatron's order. Where it does not, it is the
order of the next multiple of P with the microbatches beyond M left out: a dependency joins ops of
one microbatch only, so leaving whole microbatches out keeps an order valid and free of deadlock.

Memory on rank 0: K P + P - 1 chunks, 1 + (P - 1)/(P K) times 1F1B's. Bubble without communication:
(P - 1)(T_F + T_B + T_W)/K beside the work, T of a whole rank. Every boundary between stages on
different ranks pays t_comm, so a microbatch pays K times as often as with one stage a rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeloom.ir.errors import InputError
from pipeloom.ir.ops import Op, OpKind
from pipeloom.ir.problem import Objective, Passing, Placement, Problem
from pipeloom.ir.profile import Profile
from pipeloom.ir.schedule import Schedule

from .base import finished, require


@dataclass(frozen=True)
class Interleaved1F1B:
    """``chunks``: K; None takes the profile's own K, or 2 where it has one stage a rank."""

    chunks: int | None = None
    summary: str = "1F1B over K chunks a rank (:K, 2 by default): 1/K of the bubble, more traffic"
    parameter: str = "K"

    @property
    def name(self) -> str:
        return "interleaved-1f1b" + (f":{self.chunks}" if self.chunks else "")

    def with_parameter(self, value: int) -> Interleaved1F1B:
        return replace(self, chunks=value)

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        """Cuts each stage in K where the profile has one a rank; takes K P stages as they are."""
        chunks = self.chunks or _own_chunks(profile) or 2
        if profile.num_stages == profile.ranks:
            profile = profile.split(chunks)
        if profile.num_stages != chunks * profile.ranks:
            raise InputError(
                f"{self.name}: expected a profile of {profile.ranks} stages or a multiple"
                f"{f' by {chunks}' if self.chunks else ''} for {profile.ranks} rank(s), got {profile.num_stages}"
            )
        placement = Placement.interleaved(profile.ranks, chunks)
        limit = profile.limit_from(memory_limit)
        return Problem(profile, microbatches, placement, limit, objective)

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if placement.passing is not Passing.ACTIVATIONS or placement.owners != tuple(
            s % ranks for s in range(problem.stages)
        ):
            return f"needs stage s on rank s mod {ranks}, not the placement {placement.name}"
        if problem.stages % ranks:
            return f"needs the same number of stages on each of {ranks} ranks, not {problem.stages} in all"
        if self.chunks not in (None, problem.stages // ranks):
            return f"needs {self.chunks} stages a rank, not {problem.stages // ranks}"
        return None

    def build(self, problem: Problem) -> Schedule:
        require(self.name, self.supports(problem))
        chunks = problem.stages // problem.ranks
        order = [
            _rank(rank, problem.ranks, chunks, problem.microbatches)
            for rank in range(problem.ranks)
        ]
        return finished(problem, order, f"interleaved-1f1b:{chunks}")


def _own_chunks(profile: Profile) -> int | None:
    chunks, rest = divmod(profile.num_stages, profile.ranks)
    return chunks if chunks > 1 and not rest else None


def _rank(rank: int, ranks: int, chunks: int, microbatches: int) -> list[Op]:
    slots = _slots(ranks, chunks, microbatches)
    warm_up = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(slots))
    forwards = [Op(OpKind.F, c * ranks + rank, j) for c, j in slots]
    backwards = [Op(OpKind.BW, (chunks - 1 - c) * ranks + rank, j) for c, j in slots]
    ops = forwards[:warm_up]
    for k, backward in enumerate(backwards):
        ops += [*forwards[warm_up + k : warm_up + k + 1], backward]
    return [op for op in ops if op.microbatch < microbatches]


def _slots(ranks: int, chunks: int, microbatches: int) -> list[tuple[int, int]]:
    """(chunk, microbatch) of each forward: by groups of P microbatches, chunk after chunk."""
    return [
        (chunk, first + j)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for j in range(ranks)
    ]
