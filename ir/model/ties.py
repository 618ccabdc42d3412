"""Tied stages or layers (groups that share parameters), read from a file's key ``tied``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..documents.validation import DocumentFault, wrong
from ..errors import did_you_mean

Ties: TypeAlias = tuple[tuple[int, ...], ...]


def ties_of(
    groups: Sequence[Any], places: Mapping[Any, int], what: str
) -> tuple[Ties, list[DocumentFault]]:
    """Read the value of ``tied``; return the tied groups and a list of the value's faults.

    A group is a sorted tuple of places (indices of stages or layers). ``groups``: the value as
    given, one list of members per group. ``places``: the place of each number or name by which a
    member can be given. ``what``: the members as faults call them, such as ``names of layers``.
    Members of a group that are in the same place count as one, and a group whose members are all in
    one place is left out.
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
    """A remark on the first unknown name among ``members``, or "" if there is none.

    For example: `` (embedding: no layer has this name; did you mean embed?)``.
    """
    names = [name for name in places if isinstance(name, str)]
    for member in members:
        if names and isinstance(member, str) and member not in places:
            return f" ({member}: no layer has this name{did_you_mean(member, names)})"
    return ""
