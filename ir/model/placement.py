"""Placements: which rank runs the ops of each stage and microbatch, and what is sent for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np

from .ops import IntArray


class Passing(Enum):
    """The tensors that are sent between ranks; it follows from where ops are placed."""

    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    MIXED = "mixed"


class PlacementKind(Enum):
    """The placements that have a constructor of their own, and all others."""

    LINEAR = "linear"
    INTERLEAVED = "interleaved"
    V = "v"
    WAVE = "wave"
    ROUND_ROBIN = "round-robin"
    BIDIRECTIONAL = "bidirectional"
    CUSTOM = "custom"


@dataclass(frozen=True)
class Placement:
    """Which rank runs the ops of (stage, microbatch).

    ``table``: of each stage, the ranks of microbatches 0, 1, ..., which repeat: one column where
    all microbatches of a stage are on one rank; one row where all stages of a microbatch are.
    ``size``: stages per rank or waves, where the kind has such a number. Placements
    are equal where tables and passing are, whatever their names.
    """

    passing: Passing
    table: tuple[tuple[int, ...], ...]
    kind: PlacementKind = field(default=PlacementKind.CUSTOM, compare=False)
    size: int | None = field(default=None, compare=False)
    own_name: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """``interleaved:2``."""
        kind = self.kind.value
        return self.own_name or (kind if self.size is None else f"{kind}:{self.size}")

    @classmethod
    def of_stages(
        cls, owners: Sequence[int], name: str | None = None, ranks: int | None = None
    ) -> Placement:
        """Stage s on rank ``owners[s]`` of ``ranks``, by default as many as have stages;
        activations are passed."""
        owner = np.array(owners, dtype=np.int64)[:, np.newaxis]
        placement = cls.of_ops(Passing.ACTIVATIONS, ranks or 1 + max(owners), owner)
        return replace(placement, own_name=name)

    @classmethod
    def of_ops(
        cls, passing: Passing, ranks: int, owner: IntArray, name: str | None = None
    ) -> Placement:
        """(Stage s, microbatch j) on rank ``owner[s, j]``, of the kind that says so if one does:
        the one of this ``name``, where it has one."""
        if passing is not Passing.MIXED:
            owner = owner[:1] if passing is Passing.WEIGHTS else owner[:, :1]
        for known in _known(passing, ranks, len(owner)):
            fits = np.array_equal(known.matrix(*owner.shape), owner)
            if fits and name in (None, known.name):
                return known
        return cls(passing, tuple(map(tuple, owner.tolist())), own_name=name)

    @classmethod
    def linear(cls, ranks: int) -> Placement:
        """Stage s on rank s."""
        return replace(cls.interleaved(ranks, 1), kind=PlacementKind.LINEAR, size=None)

    @classmethod
    def interleaved(cls, ranks: int, chunks: int) -> Placement:
        """Stage s on rank s mod P, ``chunks`` stages per rank."""
        table = tuple((rank,) for rank in range(ranks)) * chunks
        return cls(Passing.ACTIVATIONS, table, PlacementKind.INTERLEAVED, chunks)

    @classmethod
    def v(cls, ranks: int) -> Placement:
        """Two stages per rank: 0..P-1 down the ranks, P..2P-1 back up; both ends are on rank 0."""
        return replace(cls.wave(ranks, 1), kind=PlacementKind.V, size=None)

    @classmethod
    def wave(cls, ranks: int, waves: int) -> Placement:
        """Stages down the ranks and back up, ``waves`` times: 2 ``waves`` stages per rank."""
        down = tuple((rank,) for rank in range(ranks))
        table = (*down, *reversed(down)) * waves
        return cls(Passing.ACTIVATIONS, table, PlacementKind.WAVE, waves)

    @classmethod
    def round_robin(cls, ranks: int) -> Placement:
        """Microbatch j on rank j mod P; weights are passed."""
        return cls(Passing.WEIGHTS, (tuple(range(ranks)),), PlacementKind.ROUND_ROBIN)

    @classmethod
    def bidirectional(cls, ranks: int) -> Placement:
        """Stage s of an even microbatch on rank s, of an odd one on rank P-1-s, each with a copy of
        its weights."""
        table = tuple((rank, ranks - 1 - rank) for rank in range(ranks))
        return cls(Passing.MIXED, table, PlacementKind.BIDIRECTIONAL)

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank of each stage where activations are passed."""
        return tuple(row[0] for row in self.table)

    def matrix(self, stages: int, microbatches: int) -> IntArray:
        """The rank of each (stage, microbatch), shape (S, M)."""
        table = np.array(self.table, dtype=np.int64)
        columns = table[:, np.arange(microbatches) % table.shape[1]]
        return np.array(np.broadcast_to(columns, (stages, microbatches)))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that live on ``rank``, for any microbatch, unless weights alone are passed."""
        return tuple(s for s, ranks in enumerate(self.table) if rank in ranks)


def _known(passing: Passing, ranks: int, stages: int) -> Iterator[Placement]:
    """Placements of every kind that exist for so many ranks and stages."""
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
