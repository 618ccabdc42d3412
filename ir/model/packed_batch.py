"""The sequences of a batch that a profile's microbatches are packed of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .profile import Profile


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The sequences of each microbatch, and what they were planned by.

    ``lengths``: tokens of each sequence of the batch. ``microbatches``: the sequences of each, by
    their places in ``lengths``; of several replicas those of one. ``profile``: of the microbatch
    that was measured, of sequences of ``reference_length`` tokens.
    """

    lengths: tuple[int, ...]
    microbatches: tuple[tuple[int, ...], ...]
    reference_length: int
    profile: Profile

    @property
    def whole(self) -> bool:
        """Whether no sequence of the batch is in another replica's microbatches."""
        return sum(map(len, self.microbatches)) == len(self.lengths)

    def split(self, chunks: int) -> PackedBatch:
        """The same of stages that are cut, as by :meth:`Profile.split`."""
        return replace(self, profile=self.profile.split(chunks))
