"""Placements: the rank of each (stage, microbatch), and which tensors ranks therefore send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np

from .ops import IntArray


class Passing(Enum):
    """The tensors that ranks send to each other, which follow from the placement.

    ACTIVATIONS: all microbatches of a stage are on one rank, and activations and their gradients
    are sent. WEIGHTS: all stages of a microbatch are on one rank, and weights and their gradients
    are sent. MIXED: the rank depends on both; activations are sent, weights can be sent.
    """

    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    MIXED = "mixed"


class PlacementKind(Enum):
    """The kinds of placements; each has a constructor in :class:`Placement`, except CUSTOM."""

    LINEAR = "linear"
    INTERLEAVED = "interleaved"
    V = "v"
    WAVE = "wave"
    ROUND_ROBIN = "round-robin"
    BIDIRECTIONAL = "bidirectional"
    CUSTOM = "custom"


@dataclass(frozen=True)
class Placement:
    """The rank that runs the ops of each (stage, microbatch).

    ``table[s][j]``: the rank of microbatch j on stage s. Columns repeat: with c columns,
    microbatch j has column j mod c. A single row applies to all stages. ``size``: the number in the
    name, stages per rank (``interleaved``) or waves (``wave``), None for other kinds.
    ``own_name``: a name that replaces the kind's. Placements are equal if their tables and passing
    are equal, whatever their names.
    """

    passing: Passing
    table: tuple[tuple[int, ...], ...]
    kind: PlacementKind = field(default=PlacementKind.CUSTOM, compare=False)
    size: int | None = field(default=None, compare=False)
    own_name: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The placement's name on the command line, such as ``interleaved:2``."""
        kind = self.kind.value
        return self.own_name or (kind if self.size is None else f"{kind}:{self.size}")

    @classmethod
    def of_stages(
        cls, owners: Sequence[int], name: str | None = None, ranks: int | None = None
    ) -> Placement:
        """A placement of stage s on rank ``owners[s]``; activations are sent.

        ``ranks``: the number of ranks, by default the highest rank in ``owners`` plus 1.
        """
        owner = np.array(owners, dtype=np.int64)[:, np.newaxis]
        placement = cls.of_ops(Passing.ACTIVATIONS, ranks or 1 + max(owners), owner)
        return replace(placement, own_name=name)

    @classmethod
    def of_ops(
        cls, passing: Passing, ranks: int, owner: IntArray, name: str | None = None
    ) -> Placement:
        """A placement of stage s of microbatch j on rank ``owner[s, j]``; ``owner``: (S, M).

        If the constructor of another kind makes the same table (and, if ``name`` is given, a
        placement of this name), the result has that kind. Otherwise, its kind is CUSTOM.
        """
        if passing is not Passing.MIXED:
            owner = owner[:1] if passing is Passing.WEIGHTS else owner[:, :1]
        for known in _known(passing, ranks, len(owner)):
            fits = np.array_equal(known.matrix(*owner.shape), owner)
            if fits and name in (None, known.name):
                return known
        return cls(passing, tuple(map(tuple, owner.tolist())), own_name=name)

    @classmethod
    def linear(cls, ranks: int) -> Placement:
        """The placement of stage s on rank s."""
        return replace(cls.interleaved(ranks, 1), kind=PlacementKind.LINEAR, size=None)

    @classmethod
    def interleaved(cls, ranks: int, chunks: int) -> Placement:
        """The placement of stage s on rank s mod P, with ``chunks`` stages per rank."""
        table = tuple((rank,) for rank in range(ranks)) * chunks
        return cls(Passing.ACTIVATIONS, table, PlacementKind.INTERLEAVED, chunks)

    @classmethod
    def v(cls, ranks: int) -> Placement:
        """The placement of stages 0..P-1 on ranks 0..P-1, and of stages P..2P-1 on ranks P-1..0."""
        return replace(cls.wave(ranks, 1), kind=PlacementKind.V, size=None)

    @classmethod
    def wave(cls, ranks: int, waves: int) -> Placement:
        """The placement of consecutive stages on ranks 0..P-1, then P-1..0, ``waves`` times.

        Each rank has 2 ``waves`` stages.
        """
        down = tuple((rank,) for rank in range(ranks))
        table = (*down, *reversed(down)) * waves
        return cls(Passing.ACTIVATIONS, table, PlacementKind.WAVE, waves)

    @classmethod
    def round_robin(cls, ranks: int) -> Placement:
        """The placement of all stages of microbatch j on rank j mod P; weights are sent."""
        return cls(Passing.WEIGHTS, (tuple(range(ranks)),), PlacementKind.ROUND_ROBIN)

    @classmethod
    def bidirectional(cls, ranks: int) -> Placement:
        """The placement of stage s on rank s for even microbatches, on rank P-1-s for odd ones.

        Each of the P stages has two copies of its weights. Activations are sent in both directions.
        """
        table = tuple((rank, ranks - 1 - rank) for rank in range(ranks))
        return cls(Passing.MIXED, table, PlacementKind.BIDIRECTIONAL)

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank of each stage, (S,); only for placements whose passing is ACTIVATIONS."""
        return tuple(row[0] for row in self.table)

    def matrix(self, stages: int, microbatches: int) -> IntArray:
        """The rank of each (stage, microbatch), shape (S, M)."""
        table = np.array(self.table, dtype=np.int64)
        columns = table[:, np.arange(microbatches) % table.shape[1]]
        return np.array(np.broadcast_to(columns, (stages, microbatches)))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that ``rank`` runs for at least one microbatch, ascending.

        It is not defined if passing is WEIGHTS, where all ranks with microbatches run all stages.
        """
        return tuple(s for s, ranks in enumerate(self.table) if rank in ranks)


def _known(passing: Passing, ranks: int, stages: int) -> Iterator[Placement]:
    """Yield all placements with a kind other than CUSTOM for this passing and these numbers.

    ``ranks``, ``stages``: the numbers of ranks and stages.
    """
    chunks, rest = divmod(stages, ranks)
    if passing is Passing.WEIGHTS:
        yield Placement.round_robin(ranks)
    elif passing is Passing.MIXED:
        if stages == ranks > 1:
            yield Placement.bidirectional(ranks)
    elif rest == 0:
        yield Placement.linear(ranks) if chunks == 1 else Placement.interleaved(ranks, chunks)
        if chunks % 2 == 0:
            yield Placement.v(ranks) if chunks == 2 else Placement.wave(ranks, chunks // 2)
