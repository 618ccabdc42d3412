"""Placements as the user requests them: by name, by a list with the rank of each stage, or by a
file with such a list."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeloom.ir.errors import InputError, UnsupportedError
from pipeloom.ir.units import counted

if TYPE_CHECKING:
    from pipeloom.ir.model.placement import Placement
    from pipeloom.ir.model.profile import Profile

WORDS = (
    "linear, interleaved:K, v, wave:K, bidirectional, auto or a file of JSON (a name with a dot or "
    "a slash)"
)
AUTO = "auto"
"""Name that lets the optimizer choose the placement."""
MOST_CHUNKS = 64
"""Maximum number of stages per rank."""
BIDIRECTIONAL = "bidirectional"
"""Name of the placement in which each stage is on two ranks."""
ONE_EACH = ("linear", BIDIRECTIONAL)
"""Names of placements for which the profile has as many stages as ranks."""
PlacementLike: TypeAlias = "str | os.PathLike[str] | Sequence[int] | PlacementSpec"
"""A placement's name, a file with the rank of each stage, or a list of these ranks."""


@dataclass(frozen=True, slots=True)
class PlacementSpec:
    """A requested placement.

    ``name``: its name, or that of the file with the rank of each stage. ``chunks``: stages per
    rank; None for ``auto``, and if the rank of each stage is given. ``owners``: the rank of each
    stage, if a list was given.
    """

    name: str
    chunks: int | None
    owners: tuple[int, ...] | None = None

    @classmethod
    def of(cls, given: PlacementLike) -> PlacementSpec:
        """Parse ``linear``, ``interleaved:2``, ``v``, ``wave:2``, ``bidirectional``, ``auto``, a
        file such as ``owners.json``, or a list of ranks such as ``[0, 1, 1, 0]``.

        Raises InputError for other values. A file is not read yet.
        """
        if isinstance(given, PlacementSpec):
            return given
        if isinstance(given, Sequence) and not isinstance(given, str):
            return cls("placement", None, tuple(given))
        if isinstance(given, str | os.PathLike):
            text = os.fspath(given)
            if text in {*ONE_EACH, "v"}:
                return cls(text, 2 if text == "v" else 1)
            if match := re.fullmatch(r"(interleaved|wave):([0-9]{1,2})", text):
                chunks = int(match[2]) * (2 if match[1] == "wave" else 1)
                if 1 <= chunks <= MOST_CHUNKS:
                    return cls(text, chunks)
            if text == AUTO or "." in text or "/" in text:
                return cls(text, None)
        raise InputError(
            f"placement: expected {WORDS}, at most {MOST_CHUNKS} stages per rank, got {given!r}"
        )

    def place(self, profile: Profile, where: str) -> tuple[Profile, Placement]:
        """Return the profile and the placement of its stages. If the profile has one stage per
        rank, each stage is cut into as many equal chunks as the placement needs.

        ``where``: the profile's name in messages. Raises InputError if profile and placement do not
        match.
        """
        if self.name == AUTO:
            raise InputError("placement: expected one placement here, got 'auto'")
        if self.chunks is None:
            return self._by_owners(profile, where)
        return self._by_word(self.chunks, profile, where)

    def _by_word(self, chunks: int, profile: Profile, where: str) -> tuple[Profile, Placement]:
        from pipeloom.ir.model.placement import Placement

        ranks = profile.ranks
        if profile.num_stages not in {ranks, chunks * ranks}:
            raise UnsupportedError(_misplaced(where, profile, self.name, chunks))
        if profile.num_stages == ranks:
            profile.check_stages(chunks * ranks, where)
            profile = profile.split(chunks)
        if self.name == "v":
            return profile, Placement.v(ranks)
        if self.name.startswith("wave"):
            return profile, Placement.wave(ranks, chunks // 2)
        if self.name == BIDIRECTIONAL:
            return profile, Placement.bidirectional(ranks)
        if chunks == 1:
            return profile, Placement.linear(ranks)
        return profile, Placement.interleaved(ranks, chunks)

    def _by_owners(self, profile: Profile, where: str) -> tuple[Profile, Placement]:
        from pipeloom.ir.model.placement import Placement

        owners = self.owners_on(profile.ranks)
        chunks, rest = divmod(len(owners), profile.ranks)
        if profile.num_stages == profile.ranks and rest == 0:
            profile.check_stages(len(owners), where)
            profile = profile.split(chunks)
        if profile.num_stages != len(owners):
            raise UnsupportedError(
                f"{self.name}: expected a rank for each of the "
                f"{counted(profile.num_stages, 'stage')} of {where}, got {len(owners)}"
            )
        return profile, Placement.of_stages(owners, ranks=profile.ranks)

    def owners_on(self, ranks: int) -> tuple[int, ...]:
        """Return the rank of each stage, from the given list or file. Raises InputError if it is
        not a list of ranks below ``ranks``."""
        from pipeloom.ir.documents.json_reader import parse_json, read_text

        given: Any = self.owners
        if given is None:
            given = parse_json(read_text(self.name), self.name)
        return tuple(_owners(given, self.name, ranks))


def _owners(document: Any, where: str, ranks: int) -> Sequence[int]:
    """Return ``document``, a list with the rank of each stage. Raises InputError if it is not a
    list of ranks below ``ranks``."""
    from pipeloom.ir.errors import show

    if not isinstance(document, list | tuple) or not document:
        raise InputError(
            f"{where}: expected the ranks of all stages, such as [0, 1, 1, 0], got {show(document)}"
        )
    wrong = [
        f"{where}: stage {stage}: expected a rank from 0 to {ranks - 1}, got {show(rank)}"
        for stage, rank in enumerate(document)
        if type(rank) is not int or not 0 <= rank < ranks
    ]
    if wrong:
        raise InputError(*wrong)
    return document


def _misplaced(where: str, profile: Profile, name: str, chunks: int) -> str:
    stages, ranks = profile.num_stages, profile.ranks
    # stages from one entry with num_stages are the same object
    shared = stages > 1 and all(stage is profile.stages[0] for stage in profile.stages)
    key, unit = ("num_stages", "") if shared else ("stages", " entries")
    expected = f"{ranks}" if chunks == 1 else f"{ranks} (to be cut) or {chunks * ranks}"
    hint = f"; --placement interleaved:{stages // ranks} fits" if stages % ranks == 0 else ""
    return (
        f"{where}: {key}: expected {expected}{unit} for the placement {name} on "
        f"{counted(ranks, 'rank')}, got {stages}{hint}"
    )
