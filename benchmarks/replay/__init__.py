"""The replay: results of the optimizer for many kinds of questions, and schedules of all families.

To compare two versions, run this folder with the library of another checkout:
``PYTHONPATH=OTHER/src:. python -m benchmarks replay --check``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeloom.solver import FAMILIES as KNOWN

from .. import Case, Claim, Column, Row, Rows, Size, Table, of_part, plain
from .asking import ask
from .comparing import STATUSES, majority
from .comparing import worse as worse
from .instances import built, questions

ROOMS = ("ir", "solver", "planner")
QUESTIONS, FAMILIES = "questions", "families"
FEW = 1
"""The number of questions of each kind in the small size."""


def cases(size: Size) -> Iterator[Case]:
    kinds = Counter[str]()
    for question in questions():
        kinds[question.kind] += 1
        if size != "small" or kinds[question.kind] <= FEW:
            yield Case(QUESTIONS, question.name, {"asked": question})
    for family in built(KNOWN):
        yield Case(FAMILIES, family.name, {"asked": family})


def measure(case: Case) -> Row:
    """The results of a question for six seeds, or a hash of the family's schedule."""
    return {"kind": case.given["asked"].kind} | ask(case.given["asked"])


def judge(rows: Rows) -> Iterator[Claim]:
    own = of_part(rows, QUESTIONS)
    counts = Counter(majority(row["status"]) for row in own)
    words = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    wrong = counts["invalid"] + counts["crash"]
    yield Claim(QUESTIONS, f"Of {len(own)} questions to the optimizer: {words}.", not wrong)


def _count(status: str) -> Column:
    return Column(status, lambda rows: sum(majority(r["status"]) == status for r in rows))


columns = {
    QUESTIONS: Table(
        *plain("kind"),
        Column("questions", len),
        *map(_count, STATUSES[:4]),
        Column("CPU s", lambda rows: sum(row["seconds"] for row in rows), ".0f"),
        by=lambda row: row["kind"],
        total=True,
    ),
    FAMILIES: Table(Column("", "kind"), Column("schedules", len), by=lambda row: row["kind"]),
}
