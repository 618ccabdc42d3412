"""Groups of stages or layers that share parameters, as files name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..documents.validation import DocumentFault, wrong
from ..errors import did_you_mean

Ties: TypeAlias = tuple[tuple[int, ...], ...]


def ties_of(
    groups: Sequence[Any], places: Mapping[Any, int], what: str
) -> tuple[Ties, list[DocumentFault]]:
    """Groups of ``what`` that share parameters, as sorted tuples of places; and their faults.

    ``places``: the place of each number or name by which a member can be given. Several members in
    one place are a single one, and a group in one place is left out.
    """
    found: list[tuple[int, ...]] = []
    faults: list[DocumentFault] = []
    for i, entry in enumerate(groups):
        members = list(entry) if isinstance(entry, list | tuple) else []
        there = all(type(member) in (int, str) and member in places for member in members)
        sound = there and len(members) >= 2 and len(set(members)) == len(members)
        group = tuple(sorted({places[member] for member in members})) if sound else ()
        if not sound:
            words = f"two or more different {what}{_unknown(members, places)}"
            faults.append(DocumentFault(("tied", i), wrong(words), entry))
        elif group in found:
            faults.append(DocumentFault(("tied", i), wrong("each group once"), entry))
        elif len(group) > 1:
            found.append(group)
    return tuple(sorted(found)), faults


def _unknown(members: Sequence[Any], places: Mapping[Any, int]) -> str:
    """`` (embedding: no layer has this name; did you mean embed?)`` for the first unknown name."""
    names = [name for name in places if isinstance(name, str)]
    for member in members:
        if names and isinstance(member, str) and member not in places:
            return f" ({member}: no layer has this name{did_you_mean(member, names)})"
    return ""
