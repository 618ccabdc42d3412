"""A legend of the words in a table of plans: only those that it has."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..packaged import packaged

MEANINGS: dict[str, dict[str, str]] = packaged(__package__, "legend.json")
"""Words of plans' names, and parts of a step in which plans are slower than the best one."""


def legend(names: Iterable[str], reasons: Iterable[str | None]) -> list[str]:
    """One line on the words of these plans' ``names``, one on the parts that ``reasons`` name."""
    (plan, known), (slower, parts) = MEANINGS.items()
    found = {word for name in names for word in name.split()}
    words = {word if word in known else re.sub(r"\d+$", "", word) for word in found}
    lines = []
    seen_parts = {reason.split()[0] for reason in reasons if reason}
    for what, of, seen in ((plan, known, words), (slower, parts, seen_parts)):
        meanings = [f"{key} = {meaning}" for key, meaning in of.items() if key in seen]
        lines += [f"{what}: {'; '.join(meanings)}"] if meanings else []
    return lines
