"""Bubble rates of the period that the published heuristic reaches.

At 1 and 2 times P x M_B these are the paper's own figures (zb-1p and zb-2p, all twelve rows). The
others, at each model's smallest number of microbatches, come from running the authors' heuristic
(the best of its eight greedy runs) at those limits on the same profiles; below P x M_B it was not
made for them.
"""

from __future__ import annotations

from ..published.tables import Row

_HEURISTIC = """
         0.25  0.5   0.75  1     1.25  1.5   1.75  2     2.5
1.5B-24  .8269 .7619 .6187 .1585 .1068 .0719 .0433 .0433 .0433
6.2B-24  .8134 .7435 .5901 .1323 .0751 .0475 .0182 .0029 .0029
14.6B-48 .8991 .8557 .7471 .1397 .0837 .0571 .0289 .0066 .0066
28.3B-96 .9472 .9228 .8564 .1421 .0867 .0604 .0326 .0038 .0038
"""
_PAPER = {1.0: "zb-1p", 2.0: "zb-2p"}
NAME = "published heuristic"


def published(row: Row, share: float) -> float | None:
    """The bubble rate at ``share`` times P x M_B; None where there is no figure."""
    if share in _PAPER:
        return row.published[_PAPER[share]]
    header, *lines = _HEURISTIC.strip().splitlines()
    for line in lines:
        name, *rates = line.split()
        if name == str(row):
            found = dict(zip(map(float, header.split()), map(float, rates), strict=True))
            return found.get(share)
    return None
