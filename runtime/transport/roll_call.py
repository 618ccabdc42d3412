"""Which ranks say nothing where all were told to end: they died, hang, or compute on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch.distributed import Store  # type: ignore[attr-defined]

PATIENCE = 1.0  # seconds in which a rank that waited says that its wait has ended
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-3, 0.05  # seconds between two looks


def silent(store: Store, key: str, rank: int, ranks: Sequence[int]) -> list[int]:
    """The ranks, of ``ranks``, that do not call this too within a second; each has its ``rank``."""
    store.set(f"{key}/{rank}", "")
    end, pause, left = time.monotonic() + PATIENCE, SHORTEST_PAUSE, list(ranks)
    while True:
        left = [r for r in left if not store.check([f"{key}/{r}"])]
        if not left or time.monotonic() > end:
            return left
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def no_answer(names: str) -> str:
    """The end of a line that says who was silent, if anyone."""
    return f"; no answer from {names}" if names else ""
