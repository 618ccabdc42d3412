"""A legend of the words in a table of plans, limited to those that occur."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..packaged import packaged

MEANINGS: dict[str, dict[str, str]] = packaged(__package__, "legend.json")
"""Meanings of the words in plans' names, and of the parts of a step."""


def legend(names: Iterable[str], reasons: Iterable[str | None]) -> list[str]:
    """One line on the words in the plans' ``names``, and one on the parts in ``reasons``."""
    (plan, known), (slower, parts) = MEANINGS.items()
    found = {word for name in names for word in name.split()}
    words = {word if word in known else re.sub(r"\d+$", "", word) for word in found}
    lines = []
    seen_parts = {reason.split()[0] for reason in reasons if reason}
    for what, of, seen in ((plan, known, words), (slower, parts, seen_parts)):
        meanings = [f"{key} = {meaning}" for key, meaning in of.items() if key in seen]
        lines += [f"{what}: {'; '.join(meanings)}"] if meanings else []
    return lines
