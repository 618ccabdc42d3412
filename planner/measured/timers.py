"""Tables of timers, as CSV with a header.

::

    stage,microbatch,op,ms      stage,microbatch,F,B,W      stage,microbatch,F,BW
    0,0,F,29.7                  0,0,29.7,29.4,19.9          0,0,29.7,49.3

``op`` is F, B, W, BW or R; times are in milliseconds, and empty cells are skipped. A column
``step`` numbers steps; without it, an op's n-th line belongs to step n. Other columns are ignored.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import Op, OpKind

from .samples import MeasuredOps, Sample, numbered, time_of

KINDS = {kind.name: kind for kind in (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R)}
EXPECTED = "a table with the columns stage, microbatch, op, ms (or F, B, W or BW in place of both)"
_Row = Mapping[str, str]


def is_table(text: str) -> bool:
    """Whether the first line is the header of a table of timers."""
    names = {name.strip() for name in text.lstrip().partition("\n")[0].split(",")}
    timed = names >= {"op", "ms"} or bool(names & set(KINDS))
    return timed and names >= {"stage", "microbatch"}


def read_timers(text: str, where: str) -> MeasuredOps:
    """The ops of a table. Raises InputError with the line's number."""
    rows = list(_rows(text, where))
    if not rows:
        raise InputError(f"{where}: expected a line a measured op, got the names of columns alone")
    cells = [cell for line, row in rows for cell in _cells(row, f"{where}: line {line}")]
    samples = numbered((op, milliseconds) for op, _, milliseconds in cells)
    if "step" in rows[0][1]:
        first = min(step for _, step, _ in cells)
        samples = [
            sample._replace(step=step - first)
            for sample, (_, step, _) in zip(samples, cells, strict=True)
        ]
    return MeasuredOps(samples, _ranks(rows, samples, where))


def _rows(text: str, where: str) -> Iterator[tuple[int, _Row]]:
    """Each line's number and its cells by column name."""
    lines = csv.reader(io.StringIO(text.strip()))
    names = [name.strip() for name in next(lines)]
    for cells in filter(None, lines):
        if len(cells) != len(names):
            raise InputError(
                f"{where}: line {lines.line_num}: expected {len(names)} cells, got {len(cells)}"
            )
        yield lines.line_num, dict(zip(names, map(str.strip, cells), strict=True))


def _cells(row: _Row, where: str) -> Iterator[tuple[Op, int, float]]:
    """Ops with their steps (0 without the column) and milliseconds."""
    stage = _whole(row, "stage", where)
    microbatch = _whole(row, "microbatch", where)
    step = _whole(row, "step", where) if "step" in row else 0
    long = row.keys() >= {"op", "ms"}
    if not long:
        columns = {name: row[name] for name in KINDS if row.get(name)}
    elif row["op"] in KINDS:
        columns = {row["op"]: row["ms"]}
    else:
        raise InputError(f"{where}: op: expected {', '.join(KINDS)}, got {row['op']!r}")
    for name, value in columns.items():
        key = "ms" if long else name
        yield Op(KINDS[name], stage, microbatch), step, time_of(value, f"{where}: {key}")


def _whole(row: _Row, key: str, where: str) -> int:
    text = row[key]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"{where}: {key}: expected a whole number, got {text!r}")
    return int(text)


def _ranks(rows: Sequence[tuple[int, _Row]], samples: Sequence[Sample], where: str) -> int:
    """The number of ranks by the column ``rank``, else one per stage."""
    if "rank" not in rows[0][1]:
        return len({sample.stage for sample in samples})
    return len({_whole(row, "rank", f"{where}: line {line}") for line, row in rows})
