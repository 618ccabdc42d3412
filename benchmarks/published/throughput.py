"""WeiPipe's published throughput and memory, compared with predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import Case, Claim, Column, Rows, Size, Table, plain
from .. import Row as Figures
from .assumed import BASE
from .cells import Row, load_rows
from .schemes import FAMILY, Prediction, predict

ROWS = "weipipe throughput"
MOST_WRONG = 1  # winners, of 21


def cases(size: Size) -> Iterator[Case]:
    for row in load_rows()[: 3 if size == "small" else None]:
        yield Case(ROWS, str(row), {"row": row})


def measure(case: Case) -> Figures:
    """The published and the predicted figures of one row.

    The predicted winner is the fastest of the schemes that are predicted to fit in memory.
    """
    row: Row = case.given["row"]
    found = {name: predict(row, name, BASE) for name in FAMILY}
    fitting = {name: each.throughput for name, each in found.items() if each.fits}
    return {
        "gpus": row.table,
        "hidden": row.hidden,
        "sequence": row.sequence,
        "microbatch": row.microbatch,
        "winner": row.winner,
        "predicted_winner": max(fitting, key=lambda name: fitting[name], default="none"),
        "cells": {name: _cell(row, name, each) for name, each in found.items()},
    }


def _cell(row: Row, scheme: str, found: Prediction) -> dict[str, Any]:
    """The predicted and the published figures of a scheme; published figures are None if the scheme
    ran out of memory or if they are unknown."""
    published, memory = row.throughput[scheme], row.memory.get(scheme)
    return {
        "published": published,
        "predicted": found.throughput,
        "error": None if published is None else found.throughput / published - 1.0,
        "published_memory": memory,
        "predicted_memory": found.memory,
        "predicted_to_fit": found.fits,
    }


def judge(rows: Rows) -> Iterator[Claim]:
    cells = [cell for row in rows for cell in row["cells"].values()]
    fits = sum(c["predicted_to_fit"] == (c["published"] is not None) for c in cells)
    winners = sum(row["winner"] == row["predicted_winner"] for row in rows)
    words = (
        f"The fastest scheme is predicted correctly in {winners} of {len(rows)} rows of "
        f"WeiPipe's tables, and whether memory suffices in {fits} of {len(cells)} cells."
    )
    yield Claim(ROWS, words, len(rows) - winners <= MOST_WRONG and fits == len(cells))


def _throughput(name: str) -> Column:
    """A column with published / predicted tokens/s per GPU, the relative error, and memory in
    GB."""

    def cell(row: Figures) -> str:
        found = row["cells"][name]
        published, error = found["published"], found["error"]
        words = "OOM" if published is None else f"{published:.0f}"
        guess = f"{found['predicted']:.0f}" if found["predicted_to_fit"] else "OOM"
        share = "" if error is None or not found["predicted_to_fit"] else f" ({error:+.0%})"
        held = found["published_memory"]
        memory = "" if held is None else f"; {held:.1f} / {found['predicted_memory']:.1f} GB"
        return f"{words} / {guess}{share}{memory}"

    return Column(name, cell)


columns = {
    ROWS: Table(
        *plain({"GPUs and links": "gpus"}),
        *plain({"H": "hidden", "S": "sequence", "G": "microbatch"}, "d"),
        *map(_throughput, FAMILY),
        *plain({"fastest": "winner", "predicted fastest": "predicted_winner"}),
    ),
}
