"""Table 8 of the Zero Bubble paper, two chunks a rank: published and own bubble rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeloom import build_family

from .. import Case, Claim, Rows, Size, Table
from .. import Row as Figures
from . import table5
from .table5 import INTERLEAVED, OWN_RULE, PUBLISHED_RULE, SHAPE, Row, both, bubble, interleaved


def load_rows() -> list[Row]:
    """The profile of a row has one stage a rank, which is two chunks."""
    return table5.load_rows("table8", 2)


def cases(size: Size) -> Iterator[Case]:
    for number, row in enumerate(load_rows()):
        if size != "small" or number % 3 == 0:
            yield Case("table8", str(row), {"row": row})


def measure(case: Case) -> Figures:
    """Each figure of one row, built, verified and timed."""
    row: Row = case.given["row"]
    cells: dict[str, Any] = {}
    for family, published in row.published.items():
        for name, own in _rates(row, family).items():
            differs = name != OWN_RULE and round(own, 4) != published
            cells[name] = {"published": published, "own": own, "differs": differs}
    return row.shape() | {"cells": cells}


def _rates(row: Row, family: str) -> dict[str, float]:
    if family == INTERLEAVED:
        return dict(zip((PUBLISHED_RULE, OWN_RULE), interleaved(row), strict=True))
    return {family: bubble(build_family(family, row.profile, row.microbatches))}


def judge(rows: Rows) -> Iterator[Claim]:
    cells = [cell for row in rows for name, cell in row["cells"].items() if name != OWN_RULE]
    equal = sum(not cell["differs"] for cell in cells)
    words = (
        "1F1B, ZB-H1, ZB-H2, ZB-V and interleaved 1F1B have the bubble rates of table 8 to four "
        f"digits in {equal} of {len(cells)} cells."
    )
    yield Claim("table8", words, equal == len(cells))


NAMES = ("1f1b", PUBLISHED_RULE, OWN_RULE, "zb-h1", "zb-h2", "zb-v")
columns = {"table8": Table([*SHAPE, *map(both, NAMES)])}
