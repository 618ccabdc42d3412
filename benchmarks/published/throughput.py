"""WeiPipe's published throughput and memory beside predictions, and how robust these are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from .. import Case, Claim, Column, Rows, Size, Table, of_part
from .. import Row as Figures
from .assumed import BASE, SOURCES, Assumptions, variations
from .cells import Row, load_rows
from .schemes import FAMILY, Prediction, predict


@dataclass(frozen=True, slots=True)
class Compared:
    """One published row beside its predictions, by scheme."""

    row: Row
    found: dict[str, Prediction]

    @property
    def winner(self) -> str:
        """The fastest of those that are predicted to fit."""
        fitting = {name: cell.throughput for name, cell in self.found.items() if cell.fits}
        return max(fitting, key=lambda name: fitting[name], default="none")

    @property
    def right(self) -> bool:
        return self.winner == self.row.winner

    def memory_right(self, scheme: str) -> bool:
        """Whether it is predicted to fit where it did, and not to where it did not."""
        return self.found[scheme].fits == (self.row.throughput[scheme] is not None)

    def error(self, scheme: str) -> float | None:
        """Predicted over published throughput, less 1; None where it ran out of memory."""
        published = self.row.throughput[scheme]
        return None if published is None else self.found[scheme].throughput / published - 1.0

    def memory_error(self, scheme: str) -> float | None:
        """The same of memory; None where none is published."""
        published = self.row.memory.get(scheme)
        return None if published is None else self.found[scheme].memory / published - 1.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """``winners`` of 21 rows and ``memory`` of 105 cells right; ``error``: the median of those of
    size."""

    winners: int
    memory: int
    error: float

    @classmethod
    def of(cls, compared: list[Compared]) -> Agreement:
        errors = [
            abs(e) for one in compared for name in FAMILY if (e := one.error(name)) is not None
        ]
        return cls(
            sum(one.right for one in compared),
            sum(one.memory_right(name) for one in compared for name in FAMILY),
            median(errors),
        )


def compare(given: Assumptions = BASE) -> list[Compared]:
    return [
        Compared(row, {name: predict(row, name, given) for name in FAMILY}) for row in load_rows()
    ]


ROWS, CHANGED = "weipipe throughput", "weipipe assumptions"
WINNERS_NEEDED = 20  # of 21
UNCHANGED = "nothing"


def cases(size: Size) -> Iterator[Case]:
    for row in load_rows()[: 3 if size == "small" else None]:
        yield Case(ROWS, str(row), {"row": row})
    if size != "small":
        for words, given in [(UNCHANGED, BASE), *variations()]:
            yield Case(CHANGED, words, {"assumptions": given})


def measure(case: Case) -> Figures:
    """A published row with its predictions, or their agreement with an assumption changed."""
    if case.part == CHANGED:
        found = asdict(Agreement.of(compare(case.given["assumptions"])))
        return found | ({"assumptions": _plain()} if case.name == UNCHANGED else {})
    row: Row = case.given["row"]
    one = Compared(row, {name: predict(row, name, BASE) for name in FAMILY})
    return {
        "gpus": row.table,
        "hidden": row.hidden,
        "sequence": row.sequence,
        "microbatch": row.microbatch,
        "winner": row.winner,
        "predicted_winner": one.winner,
        "cells": {name: _cell(one, name) for name in FAMILY},
    }


def _plain() -> dict[str, dict[str, Any]]:
    """Each assumption: its value, what it is, where it comes from."""
    return {
        field.name: {
            "value": sorted(value) if isinstance(value, frozenset) else value,
            "what": SOURCES[field.name][0],
            "source": SOURCES[field.name][1],
        }
        for field in fields(BASE)
        for value in [getattr(BASE, field.name)]
    }


def _cell(one: Compared, scheme: str) -> dict[str, Any]:
    found = one.found[scheme]
    return {
        "published": one.row.throughput[scheme],
        "predicted": found.throughput,
        "error": one.error(scheme),
        "published_memory": one.row.memory.get(scheme),
        "predicted_memory": found.memory,
        "memory_error": one.memory_error(scheme),
        "predicted_to_fit": found.fits,
    }


def judge(rows: Rows) -> Iterator[Claim]:
    own = of_part(rows, ROWS)
    right = sum(row["winner"] == row["predicted_winner"] for row in own)
    cells = [cell for row in own for cell in row["cells"].values()]
    fits = sum(cell["predicted_to_fit"] == (cell["published"] is not None) for cell in cells)
    words = (
        f"The fastest scheme is predicted in {right} of {len(own)} rows of WeiPipe's tables, and "
        f"whether memory suffices in {fits} of {len(cells)} cells."
    )
    wrong = len(own) - right
    if own:
        yield Claim(ROWS, words, wrong <= 21 - WINNERS_NEEDED and fits == len(cells))


def _throughput(name: str) -> Column:
    """Published / predicted tokens a second and GPU, the error, and published / predicted GB."""

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
        [
            Column("GPUs and links", "gpus"),
            Column("H", "hidden", "d"),
            Column("S", "sequence", "d"),
            Column("G", "microbatch", "d"),
            *map(_throughput, FAMILY),
            Column("fastest", "winner"),
            Column("predicted fastest", "predicted_winner"),
        ]
    ),
    CHANGED: Table(
        [
            Column("changed alone", "case"),
            Column("winners right, of 21", "winners", "d"),
            Column("fits or not right, of 105", "memory", "d"),
            Column("median error", "error", ".0%"),
        ]
    ),
}
