"""The schedules that can be explored on the home page of the site.

``python docs/tools/explored.py FILE`` writes them as one page. ``make docs`` adds it to the site
only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pipeloom

PROFILE = Path(__file__).parents[2] / "examples/profiles/zb-6.2b.json"
MICROBATCHES, MEMORY_LIMIT, SECONDS = 24, 16, 20.0
FAMILIES = ("1f1b", "zb-h1")


def explored() -> str:
    """Return the page with the best schedule and those of families, as ``show`` writes it."""
    asked = {"microbatches": MICROBATCHES, "memory_limit": MEMORY_LIMIT}
    best = pipeloom.optimize(PROFILE, **asked, time_limit=SECONDS)
    others = [pipeloom.build(name, PROFILE, **asked) for name in FAMILIES]
    titles = ["optimized", *FAMILIES]
    return pipeloom.show(best, *others, titles=titles, kind="html").data.decode()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(explored())
