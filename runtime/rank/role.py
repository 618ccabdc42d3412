"""The role of each rank in a program: the stages that it runs and owns, and its connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.transfers import holders

from ..stages.tie_detection import Group, ranks_of, stages_of
from ..transport import Routes


@dataclass(frozen=True, slots=True)
class RankRole:
    """The stages of a program that ``rank`` runs, owns or needs.

    ``users``: for each stage, the ranks that run it. ``holders``: for each stage, the ranks that
    own it. ``needed``: the stages whose modules this rank needs, ascending, because it runs them,
    owns them or passes on their weights.
    """

    rank: int
    users: Sequence[Sequence[int]]
    holders: Sequence[Sequence[int]]
    needed: Sequence[int]

    @classmethod
    def of(cls, program: Program, rank: int) -> RankRole:
        users, homes = users_of(program), holders(program.schedule)
        passing = {t.stage for t in program.schedule.transfers if rank in (t.source, t.target)}
        needed = [
            s
            for s, (running, holding) in enumerate(zip(users, homes, strict=True))
            if rank in running or rank in holding or s in passing
        ]
        return cls(rank, users, homes, needed)

    @property
    def held(self) -> list[int]:
        """The stages that the rank owns, ascending."""
        return [s for s, ranks in enumerate(self.holders) if self.rank in ranks]

    @property
    def run(self) -> list[int]:
        """The stages that the rank runs, ascending."""
        return [s for s, ranks in enumerate(self.users) if self.rank in ranks]


def has_relays(program: Program) -> bool:
    """Whether the program's ranks relay partial sums for the gradient norm (post-validation)."""
    return any(isinstance(i, ir.Relay) for row in program.instructions for i in row)


def users_of(program: Program) -> list[list[int]]:
    """Returns, for each stage, the ranks that run it, ascending."""
    users: list[list[int]] = [[] for _ in range(program.schedule.problem.stages)]
    for rank, row in enumerate(program.instructions):
        for stage in sorted({i.op.stage for i in row if isinstance(i, ir.Compute)}):
            users[stage].append(rank)
    return users


def averages(program: Program) -> bool:
    """Whether the program averages gradients over replicas."""
    return any(isinstance(i, ir.Average) for row in program.instructions for i in row)


def averaged(program: Program, rank: int) -> list[int]:
    """Returns the stages whose gradients ``rank`` averages over replicas, in program order."""
    return [i.stage for i in program.instructions[rank] if isinstance(i, ir.Average)]


def routes_of(
    program: Program,
    held: Sequence[Sequence[int]],
    tied: Sequence[Group],
    timeout: float,
    *,
    gathers: bool,
) -> Routes:
    """Returns the connections that the program needs.

    These are the pairs (sender, receiver) of its messages, and the groups of ranks that sum the
    gradients of tied parameters or of a stage that several ranks own. ``held``: for each stage, the
    ranks that own it. ``tied``: groups of tied parameters. ``timeout``: the maximum seconds of each
    wait. ``gathers``: whether the norm of all gradients is summed over all ranks.
    """
    channels = {
        (rank, i.target)
        for rank, row in enumerate(program.instructions)
        for i in row
        if isinstance(i, ir.Send)
    }
    groups = {ranks_of(stages_of(group), held) for group in tied} | set(map(tuple, held))
    if gathers:
        groups.add(tuple(range(program.schedule.problem.ranks)))
    return Routes.of(channels, {group for group in groups if len(group) > 1}, timeout)
