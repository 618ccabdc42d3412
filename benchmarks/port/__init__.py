"""A training script for torch.distributed.pipelining and its port to pipeloom, run alternately."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory

from .. import Case, Claim, Row, Rows, Size, Table, plain

ROOMS = ("runtime", "compiler")
PART, MOST_CHANGED = "port", 8
FAMILIES = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved-1f1b:2", "ZBVZeroBubble": "zb-v"}
"""The schedules of torch that are compared, each with the family that corresponds to it."""


def cases(size: Size) -> Iterator[Case]:
    for name in list(FAMILIES)[: 1 if size == "small" else None]:
        yield Case(PART, name, timed=True)


def measure(case: Case) -> Row:
    """The median step times and CPU times, the losses, and the number of lines that the port
    changes."""
    from .compare import compared

    with TemporaryDirectory() as folder:
        return compared(case.name, folder)


def judge(rows: Rows) -> Iterator[Claim]:
    changed = max(row["changed_lines"] for row in rows)
    equal = all(row["losses_equal"] for row in rows)
    words = (
        f"Porting a training script from torch.distributed.pipelining changes {changed} lines; its "
        f"losses are {'equal' if equal else 'DIFFERENT'} up to rounding."
    )
    yield Claim(PART, words, equal and changed <= MOST_CHANGED, "port")


columns = {
    PART: Table(
        *plain({"schedule": "case"}),
        *plain({"torch ms": "torch_ms", "ours ms": "ours_ms"}, ".1f"),
        *plain({"ours / torch": "ratio"}, ".3f"),
        *plain({"CPU: torch ms": "torch_cpu_ms", "ours ms": "ours_cpu_ms"}, ".0f"),
        *plain({"ours / torch": "cpu_ratio"}, ".3f"),
        *plain({"loss difference": "losses_apart"}, ".1e"),
    )
}
